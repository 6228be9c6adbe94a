-- no-transaction
-- What evidence contradicts: rare, and looked for on every page that says what needs a person.
create index concurrently delivery_contradiction on outboxd.delivery (notification_id) where contradiction;
