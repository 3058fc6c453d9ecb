# A server on the CPU: docs/deploy.md.
FROM python:3.12-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# llama.cpp for any x86-64 processor with AVX2, or any ARM64 one, and not for the one that builds this.
ENV CMAKE_ARGS="-DGGML_NATIVE=OFF"
RUN python -m venv /opt/edgespec \
    && /opt/edgespec/bin/pip install --no-cache-dir ".[serve]"

FROM python:3.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home edgespec \
    && install --directory --owner edgespec --group edgespec /models
COPY --from=build /opt/edgespec /opt/edgespec
# Models of the hub, and what is measured and converted, stay in the volume.
ENV PATH="/opt/edgespec/bin:$PATH" HF_HOME=/models/hub EDGESPEC_CACHE=/models/cache EDGESPEC_PORT=8080
VOLUME /models
WORKDIR /models
USER edgespec
EXPOSE 8080
# 503 while a model is loaded, which may download it first.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['EDGESPEC_PORT'] + '/health', timeout=4)"]
# Outside of the container nothing reaches its loopback: it listens everywhere, and therefore needs EDGESPEC_API_KEY.
ENTRYPOINT ["edgespec"]
CMD ["serve", "--host", "0.0.0.0"]
