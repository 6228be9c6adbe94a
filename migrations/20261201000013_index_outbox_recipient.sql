-- no-transaction
-- For people who look for a recipient. Compared by octets, whatever the database sorts by.
create index concurrently outbox_recipient on outboxd.outbox ((recipient collate "C"), id);
