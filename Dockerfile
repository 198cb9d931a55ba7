# albert in a container: docker build -t albert .
FROM python:3.13-slim
COPY . /tmp/albert
RUN pip install --no-cache-dir "/tmp/albert[cluster]" && rm -rf /tmp/albert
ENTRYPOINT []
CMD ["albert", "--help"]
