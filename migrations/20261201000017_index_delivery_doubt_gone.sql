-- no-transaction
-- See `delivery_in_doubt`.
drop index concurrently if exists outboxd.delivery_doubt;
