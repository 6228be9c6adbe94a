-- Retention and erasure: the only ways in which what was promised or recorded is removed or changed.
--
-- Both go through the functions below, which alone let the rules against changes pass (`outboxd.removing`, for the time of the
-- call). Nothing that is in progress is removed: a notification goes when it is final, an operation's receipt and
-- message when all of its notifications are.

set local lock_timeout = '5s';

-- When the content was erased; the row stays, so that its id and its dedup key stay taken.
alter table outboxd.outbox add column erased_at timestamptz;

drop trigger content_never_changes on outboxd.outbox;
create trigger content_never_changes before update on outboxd.outbox
    for each row when (current_setting('outboxd.removing', true) is distinct from 'on')
    execute function outboxd.refuse_change('what was promised to be sent does not change');

drop trigger evidence_never_changes on outboxd.evidence;
create trigger evidence_never_changes before update or delete on outboxd.evidence
    for each row when (current_setting('outboxd.removing', true) is distinct from 'on')
    execute function outboxd.refuse_change('evidence is only ever added to');

-- The least id that a notification or message stored at this time can have: ids begin with their time (RFC 9562, 5.7).
create function outboxd.least_id(at timestamptz) returns uuid language sql immutable parallel safe as $$
    select (lpad(to_hex(greatest((extract(epoch from at) * 1000)::bigint, 0)), 12, '0') || repeat('0', 20))::uuid
$$;

-- Whether each of these notifications is final or no longer there.
create function outboxd.all_final(ids uuid[]) returns boolean language sql stable parallel safe as $$
    select not exists (
        select from unnest(ids) as n (id) join outboxd.delivery d on d.notification_id = n.id
        where d.state not in ('sent', 'bounced', 'failed', 'cancelled'))
$$;

-- Removes notifications with all that is known about them. The caller has locked their rows of delivery.
create function outboxd.remove_notifications(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    delete from outboxd.evidence where notification_id = any (ids);
    delete from outboxd.attempt where notification_id = any (ids);
    delete from outboxd.delivery where notification_id = any (ids);
    delete from outboxd.outbox where id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;

-- Removes the attempts and the evidence of notifications that stay. The caller has locked their rows of delivery.
create function outboxd.remove_attempts(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    delete from outboxd.evidence where notification_id = any (ids);
    delete from outboxd.attempt where notification_id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;

-- Erases what notifications say and to whom. Without a body no message can be made of them, whatever becomes of their state,
-- and no content has their dedup key's fingerprint again.
create function outboxd.erase_notifications(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    update outboxd.outbox
        set sender = 'erased@erased.invalid', sender_name = null, recipient = 'erased@erased.invalid', recipient_name = null,
            reply_to = null, subject = '', body_text = null, body_html = null, headers = '[]', attachments = '[]',
            list_unsubscribe = null, list_unsubscribe_post = false, erased_at = now(),
            fingerprint = case when dedup_key is not null then '\x00'::bytea end
        where id = any (ids) and erased_at is null;
    update outboxd.attempt set reply_text = null, error = null where notification_id = any (ids);
    update outboxd.evidence set detail = '{}' where notification_id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;
