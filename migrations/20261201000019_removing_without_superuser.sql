-- What removes and erases no longer needs a superuser to be created: PostgreSQL lets nobody else bind a setting that it does not know
-- to a function (PostgreSQL documentation, CREATE FUNCTION), so these functions set it for their own time themselves. An error undoes it
-- with everything else. For databases where a superuser applied the earlier text.

set local lock_timeout = '5s';

create or replace function outboxd.remove_notifications(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    delete from outboxd.replay_item where notification_id = any (ids);
    delete from outboxd.evidence where notification_id = any (ids);
    delete from outboxd.attempt where notification_id = any (ids);
    delete from outboxd.delivery where notification_id = any (ids);
    delete from outboxd.outbox where id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;

create or replace function outboxd.remove_attempts(ids uuid[]) returns void language sql as $$
    select set_config('outboxd.removing', 'on', true);
    delete from outboxd.evidence where notification_id = any (ids);
    delete from outboxd.attempt where notification_id = any (ids);
    select set_config('outboxd.removing', '', true);
$$;

create or replace function outboxd.erase_notifications(ids uuid[]) returns void language sql as $$
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
