# One command each. `make test` is what CI runs.

.NOTPARALLEL:
.PHONY: help setup screenshots demo test lint deny advisories sqlx sqlx-check bench examples openapi

help:
	@echo 'make setup       install what the demo and the tests need'
	@echo 'make demo        set up, then show outboxd at work (ARGS="…" for its flags)'
	@echo 'make test        everything CI checks'
	@echo 'make lint        formatting, clippy, documentation, licences'
	@echo 'make sqlx        bring .sqlx up to date after a query or a migration changed'
	@echo 'make openapi     ask the real API all that its description allows and forbids'
	@echo 'make screenshots picture every page of the console, into docs/console'
	@echo 'make bench       measure'
	@echo 'make advisories  known faults of dependencies (needs the network)'

setup:
	@tools/setup
	@tools/axe

# Every page of the console, into docs/console.
screenshots: setup
	mkdir -p docs/console
	OUTBOXD_SCREENSHOTS=docs/console cargo test --locked --test it -- console::screenshots_of_every_page

demo: setup
	cargo run --locked -- demo $(ARGS)

# The test runner comes last, so that its own words are the last ones.
test: setup lint sqlx-check examples openapi
	cargo test --locked --doc
	cargo test --locked --no-fail-fast --lib --bins --tests

lint: deny
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items

deny:
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; \
	else echo 'cargo-deny is not installed (cargo install --locked cargo-deny): licences and sources are not checked'; fi

advisories:
	cargo deny check advisories

sqlx: setup
	tools/sqlx

sqlx-check: setup
	tools/sqlx --check

# Every example is a program that checks its own claim and fails when it does not hold.
examples: setup
	@for file in examples/*.rs; do \
		[ -e "$$file" ] || continue; \
		name=$$(basename "$$file" .rs); \
		echo "cargo run --example $$name"; \
		tools/with-postgres cargo run --locked --quiet --example "$$name" || exit 1; \
	done

# Every answer of the real API against its description.
openapi: setup
	tools/schemathesis

bench: setup
	cargo bench --locked --bench drain -- $(ARGS)
	cargo bench --locked --bench claim
	cargo bench --locked --bench api
	cargo bench --locked --bench console
