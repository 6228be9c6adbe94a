FROM rust:1-slim-trixie AS build
WORKDIR /build
# The dependencies alone first: they change less often than the program.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src && echo 'fn main() {}' >src/main.rs && touch src/lib.rs && cargo build --release --locked && rm -r src
COPY . .
# Newer than the stand-ins, whatever the checkout's times are.
RUN touch src/main.rs src/lib.rs && SQLX_OFFLINE=true cargo build --release --locked --bin outboxd

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home outboxd
COPY --from=build /build/target/release/outboxd /usr/local/bin/outboxd
USER outboxd
ENTRYPOINT ["outboxd"]
