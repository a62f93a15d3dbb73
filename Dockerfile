# docker build -t salrun . && docker run --rm -v "$PWD:/work" salrun +experiment=smerf_simple_fr scale=laptop
FROM python:3.11-slim
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt . && rm -rf /src
ENV SALRUN_CACHE=/work/.salrun/store SALRUN_DATA=/work/.salrun/data
VOLUME /work
WORKDIR /work
ENTRYPOINT ["salrun"]
CMD ["--help"]
