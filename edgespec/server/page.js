// A chat that shows what was drafted. All text is inserted as text nodes; nothing is parsed as markup.
"use strict";

const at = (id) => document.getElementById(id);
const [log, prompt, send, stop, error] = ["log", "prompt", "send", "stop", "error"].map(at);
const messages = [];
const drafters = []; // the names seen so far; their order gives the style of the underline
let status = null;
let running = null;

const SHOWN = 24; // rejected tokens of a round that are shown

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function show(message) {
  error.textContent = message || "";
  error.hidden = !message;
}

async function checked(response) {
  if (response.ok) return response;
  at("key-row").hidden = response.status !== 401 && at("key-row").hidden;
  if (response.status === 401) at("key").focus();
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* no JSON */ }
  throw new Error(message);
}

// --- the model's details

async function readStatus() {
  status = await (await checked(await fetch("/v1/edgespec/status", { headers: headers() }))).json();
  at("model").textContent = status.model;
  at("model").title = status.description;
}

function facts() {
  const ms = (value) => `${value.toFixed(value < 10 ? 2 : 1)} ms`;
  const prices = status.prices_ms;
  const acceptance = Object.entries(status.acceptance).filter(([, each]) => each.rate !== null);
  return {
    name: status.model,
    description: status.description,
    context: `${status.context} tokens (trained for ${status.trained_context})`,
    drafters: status.drafters.join(", ") || "none",
    verifier: status.verifier,
    "plain step": ms(prices.plain),
    "pass by width": Object.entries(prices.pass_by_width).map(([width, each]) => `${width}: ${ms(each)}`).join(", "),
    "first guess accepted": acceptance.map(([name, each]) => `${name} ${(100 * each.rate).toFixed(0)}%`).join(", ") || "not known yet",
    slots: `${status.slots.filter((slot) => slot.busy).length} of ${status.slots.length} busy`,
    ...(status.notices.length && { notices: status.notices.join(" ") }),
  };
}

at("details").onclick = async () => {
  try {
    await readStatus();
    at("facts").replaceChildren(...Object.entries(facts()).flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
    at("about").showModal();
  } catch (failure) {
    show(failure.message);
  }
};

// --- an answer

class Answer {
  constructor() {
    this.text = "";
    this.tokens = this.rounds = this.drafted = this.accepted = this.ms = 0;
    this.article = element("article", "assistant");
    this.reasoning = element("details", "reasoning");
    this.reasoning.append(element("summary", "", "Thoughts"), element("div", "text"));
    this.reasoning.hidden = true;
    this.body = element("div", "text");
    this.strip = element("div", "strip");
    this.strip.tabIndex = 0;
    this.strip.setAttribute("role", "img");
    this.strip.setAttribute("aria-label", "tokens of each pass");
    this.figures = element("span", "figures");
    this.legend = element("span", "legend");
    const copy = element("button", "", "Copy");
    copy.type = "button";
    copy.onclick = () => navigator.clipboard.writeText(this.text).then(() => { copy.textContent = "Copied"; }, () => show("the browser does not allow copying here"));
    const foot = element("div", "foot dim");
    foot.append(this.figures, this.legend, copy);
    this.article.append(this.reasoning, this.body, this.strip, foot);
    log.append(this.article);
  }

  round(delta, round) {
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    if (round && round.spans) {
      const thinking = round.reasoning_spans || [];
      this.part(this.reasoning.lastChild, thinking, thinking.length && !round.spans.length ? round.rejected : []);
      this.part(this.body, round.spans, thinking.length && !round.spans.length ? [] : round.rejected);
      this.column(round);
    } else if (delta.content) {
      this.body.append(delta.content);
    }
    if (delta.reasoning_content) this.reasoning.hidden = false;
    this.text += delta.content || "";
    if (low) log.scrollTop = log.scrollHeight;
  }

  // The spans of a round. What was rejected stands before the token that the target chose instead, the last one.
  part(place, spans, rejected) {
    const made = spans.map(([text, drafter]) => (drafter ? this.accepted_(text, drafter) : document.createTextNode(text)));
    const last = spans.length && !spans[spans.length - 1][1] ? made.pop() : null;
    place.append(...made);
    if (rejected.length) {
      const text = rejected.slice(0, SHOWN).join("").replaceAll("\n", "⏎") + (rejected.length > SHOWN ? " …" : "");
      const lost = element("span", "rejected", text);
      lost.title = "drafted and rejected";
      place.append(lost);
    }
    if (last) place.append(last);
  }

  accepted_(text, drafter) {
    const first = drafter.split("+")[0];
    if (!drafters.includes(first)) drafters.push(first);
    const style = `d${drafters.indexOf(first) % 5}`;
    if (![...this.legend.children].some((each) => each.textContent === first)) {
      this.legend.append(this.legend.firstChild ? " " : "drafted by ", element("span", `accepted ${style}`, first));
    }
    const span = element("span", `accepted ${style}`, text);
    span.title = drafter;
    return span;
  }

  column(round) {
    const won = round.k - round.rejected.length;
    this.rounds += 1;
    this.tokens += round.tokens;
    this.drafted += round.k;
    this.accepted += won;
    this.ms += round.ms;
    const column = element("div", "column");
    column.title = `pass ${this.rounds}: ${round.tokens} tokens, ${won} of ${round.k} drafted were accepted, ${round.ms.toFixed(1)} ms`;
    for (const [name, count] of [["own", Math.max(0, round.tokens - won)], ["won", won], ["lost", round.rejected.length]]) {
      if (!count) continue;
      const bar = element("i", name);
      bar.style.height = `${Math.min(44, 4 * count)}px`;
      column.append(bar);
    }
    this.strip.append(column);
    this.strip.scrollLeft = this.strip.scrollWidth;
    this.tell(status && this.ms ? (status.prices_ms.plain * this.tokens) / this.ms : null);
  }

  tell(speedup, note = "") {
    const parts = [`${this.tokens} tokens`];
    if (this.rounds) parts.push(`${(this.tokens / this.rounds).toFixed(2)} a pass`);
    if (this.drafted) parts.push(`${((100 * this.accepted) / this.drafted).toFixed(0)}% of ${this.drafted} drafted accepted`);
    if (speedup) parts.push(`${speedup.toFixed(2)}× plain decoding`);
    if (note) parts.push(note);
    this.figures.textContent = parts.join(" · ");
  }

  end(end) {
    const stats = end && end.stats;
    if (stats) this.tell(stats.speedup, end.reason === "length" || end.reason === "context" ? "cut at the most tokens" : "");
    if (end && end.notices.length) show(end.notices.join(" "));
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function request() {
  const [temperature, length] = [at("temperature").value, at("length").value];
  return {
    model: status ? status.model : "",
    messages,
    stream: true,
    max_tokens: Number(at("most").value) || 512,
    ...(temperature !== "" && { temperature: Number(temperature) }),
    edgespec: { spans: true, ...(length !== "" && { k: Number(length) }) },
  };
}

async function ask(text) {
  show("");
  at("hint").hidden = true;
  messages.push({ role: "user", content: text });
  const question = element("article", "user");
  question.append(element("div", "text", text));
  log.append(question);
  const answer = new Answer();
  log.scrollTop = log.scrollHeight;
  running = new AbortController();
  send.hidden = true;
  stop.hidden = false;
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify(request()), signal: running.signal };
    for await (const chunk of events(await checked(await fetch("/v1/chat/completions", options)))) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      if (!choice) continue;
      if (choice.finish_reason) answer.end(chunk.edgespec);
      else answer.round(choice.delta, chunk.edgespec);
    }
  } catch (failure) {
    if (failure.name === "AbortError") answer.tell(null, "stopped");
    else show(failure.message);
  } finally {
    running = null;
    send.hidden = false;
    stop.hidden = true;
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
    else if (!answer.rounds) {
      messages.pop();
      answer.article.remove();
      question.remove();
      if (!prompt.value) prompt.value = text;
    }
    prompt.focus();
  }
}

// --- controls

at("composer").onsubmit = (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  ask(text);
};
prompt.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("composer").requestSubmit();
  }
};
stop.onclick = () => running && running.abort();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
at("drafts").onchange = () => document.body.classList.toggle("plain", !at("drafts").checked);
at("new").onclick = () => {
  if (running) running.abort();
  messages.length = 0;
  log.querySelectorAll("article").forEach((each) => each.remove());
  at("hint").hidden = false;
  show("");
  prompt.focus();
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = (on) => document.documentElement.classList.toggle("dark", on);
paint(dark.matches);
dark.onchange = () => paint(dark.matches);
at("theme").onclick = () => paint(!document.documentElement.classList.contains("dark"));
readStatus().catch((failure) => show(failure.message));
