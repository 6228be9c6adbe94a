-- no-transaction
-- What is in doubt, the least time left first.
create index concurrently delivery_doubt_until on outboxd.delivery (doubt_until, notification_id) where doubt_until is not null;
