# albert in a container: docker build -t albert .
FROM python:3.13-slim
# Triton needs a C compiler at run time, to compile the model on a GPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /tmp/albert
RUN pip install --no-cache-dir "/tmp/albert[cluster]" && rm -rf /tmp/albert
ENTRYPOINT []
CMD ["albert", "--help"]
