-- no-transaction
-- For people who look for an account. On `outbox`, whose rows never change: no change of state touches it.
--
-- CONCURRENTLY, in a file of its own: producers go on meanwhile (PostgreSQL documentation, CREATE INDEX, "Building Indexes
-- Concurrently"). What an interrupted build leaves behind is removed before migrating again: see `src/store/migrate.rs`.
create index concurrently outbox_account on outboxd.outbox (account_id, id);
