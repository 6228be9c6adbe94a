-- Replay: what it may do with a notification, in one place, and what became of each row of one.
--
-- The previous release neither plans nor runs replays; nothing that it reads changes.

set local lock_timeout = '5s';

-- What making a notification pending again would mean, as things stand now:
--
--   safe           nothing of it was accepted
--   within_window  it may have been accepted, by a provider that still takes a second copy for the first (G3 (b))
--   risky          it may have been accepted and nobody deduplicates: only a person may decide it (G3 (c))
--   anything else  it cannot be done, for this reason
--
-- `disputed` says that something of it was accepted although it failed: against the record, or before a person sent it again.
create function outboxd.replay_verdict(
    id uuid, state text, reason text, disputed boolean, expires_at timestamptz, erased_at timestamptz,
    resend_until timestamptz
) returns text language sql stable parallel safe as $$
    select case
        when state in ('pending', 'claimed', 'transmitting') then 'under_way'
        when state in ('sent', 'bounced') then 'accepted'
        when state = 'cancelled' then 'cancelled'
        when erased_at is not null then 'erased'
        when expires_at <= now() then 'expired'
        when state = 'failed' and not disputed then 'safe'
        -- Where duplicates are accepted there is such a time as well, without anybody who deduplicates, or for longer than they do.
        -- The margin for the sending and for clocks is what the room for a resend is shorter by than its window.
        when resend_until >= now() and not exists (
            select from outboxd.attempt a
            where a.notification_id = id and a.outcome = 'uncertain'
              and (a.dedup_window is null
                   or a.begun_at + a.dedup_window - (a.recovery_window - a.resend_room) < now())) then 'within_window'
        else 'risky'
    end
$$;

-- What failed as invalid is safe as well: it fails again, at no cost, unless a setting or a release was the reason.

-- Why a row is not possible, by the word above.
alter table outboxd.replay_item add column why text collate "C";

-- Whose replay items go with a notification that retention removes, and the story of one notification.
create index replay_item_notification on outboxd.replay_item (notification_id);

create or replace function outboxd.remove_notifications(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    delete from outboxd.replay_item where notification_id = any (ids);
    delete from outboxd.evidence where notification_id = any (ids);
    delete from outboxd.attempt where notification_id = any (ids);
    delete from outboxd.delivery where notification_id = any (ids);
    delete from outboxd.outbox where id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;
