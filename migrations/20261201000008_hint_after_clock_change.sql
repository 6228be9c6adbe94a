-- A hint of work also when the clock has gone back: after a failover to a machine whose clock is behind, no hint was given
-- until that clock had caught up with the last one.

set local lock_timeout = '5s';

create or replace function outboxd.hint() returns void language plpgsql as $$
declare
    slot bigint := (extract(epoch from clock_timestamp()) * 100)::bigint;
begin
    if (select last_value <> slot from outboxd.hint_slot) then
        perform setval('outboxd.hint_slot', slot);
        perform pg_notify('outboxd', '');
    end if;
end
$$;
