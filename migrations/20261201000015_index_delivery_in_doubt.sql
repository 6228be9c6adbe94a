-- no-transaction
-- What is in doubt, the newest first. In the place of `delivery_doubt`, in whose order nothing is read.
create index concurrently delivery_in_doubt on outboxd.delivery (notification_id) where doubt_since is not null;
