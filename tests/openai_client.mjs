// OpenAI's package for JavaScript against a server: node openai_client.mjs URL
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'any', maxRetries: 0 });
const asked = { model: 'toy', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 100, temperature: 0 };
const create = (fields) => client.chat.completions.create({ ...asked, ...fields });

const plain = (await create({})).choices[0].message.content;
let streamed = '';
let usage = null;
for await (const chunk of await create({ stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta?.content ?? '';
  usage = chunk.usage ?? usage;
}
const predicted = await create({ prediction: { type: 'content', content: plain } });
let refused = null;
try {
  await create({ messages: [{ role: 'user', content: 'x'.repeat(100000) }] });
} catch (error) {
  refused = [error.status, error.code];
}
console.log(JSON.stringify({
  plain,
  streamed,
  tokens: usage.completion_tokens,
  predicted: predicted.choices[0].message.content,
  accepted: predicted.usage.completion_tokens_details.accepted_prediction_tokens,
  refused,
}));
