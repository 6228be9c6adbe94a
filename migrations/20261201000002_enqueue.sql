-- The producer's contract: one function, called inside the producer's own transaction.
--
-- Errors: OB001 a value is refused (COLUMN names the field, HINT the remedy); OB002 the dedup key was used for other
-- content. The limits are those of `src/domain/content.rs` and `src/domain/address.rs`; a test compares them.

set local lock_timeout = '5s';

-- A UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds, then random.
create function outboxd.uuid_v7() returns uuid language sql volatile parallel safe as $$
    select encode(
        overlay(
            overlay(uuid_send(gen_random_uuid())
                placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
            -- version 7: the high half of byte 6
            placing set_byte('\x00'::bytea, 0, 112 + (get_byte(uuid_send(gen_random_uuid()), 6) & 15)) from 7 for 1),
        'hex')::uuid
$$;

create function outboxd.refuse(field text, problem text, remedy text) returns void language plpgsql as $$
begin
    raise exception '%: %', field, problem using errcode = 'OB001', column = field, hint = remedy;
end
$$;

-- What is wrong with an address, or null. RFC 5321, 4.1.2 and 4.5.3.1; RFC 6531, 3.3 for what is not ASCII. Quoted local
-- parts are allowed, domain literals are not.
create function outboxd.address_problem(address text) returns text language sql immutable parallel safe as $$
    select case
        when address = '' then 'is empty'
        when address ~ '[\u0001-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]' then 'has a control or invisible character'
        when address ~ '[\u0080-\uffff]' and (address ~ '[^\S ]' or address ~ '[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]' or address ~ '\\[^\u0001-\u007f]')
            then 'has white space or an escape that is not ASCII'
        when address ~ '^""@' then 'has an empty local part'
        when octet_length(address) > 254 then 'is over 254 octets'
        when position('@' in address) = 0 then 'has no @'
        when octet_length(regexp_replace(address, '@[^@]*$', '')) > 64 then 'has a local part of over 64 octets'
        when address ~ '@\[[^@]*$' then 'has a domain literal, which is not supported'
        when address !~ '^([A-Za-z0-9!#$%&''*+/=?^_`{|}~\u0080-\uffff-]+(\.[A-Za-z0-9!#$%&''*+/=?^_`{|}~\u0080-\uffff-]+)*|"([^"\\]|\\[^\n])*")@[^@]+$'
            then 'has a local part that is not an address''s'
        when address !~ '@[A-Za-z0-9\u0080-\uffff]([A-Za-z0-9\u0080-\uffff-]{0,61}[A-Za-z0-9\u0080-\uffff])?(\.[A-Za-z0-9\u0080-\uffff]([A-Za-z0-9\u0080-\uffff-]{0,61}[A-Za-z0-9\u0080-\uffff])?)*$'
            then 'has a domain that is not a domain name'
    end
$$;

create function outboxd.check_address(field text, address text) returns void language plpgsql as $$
declare
    problem text := outboxd.address_problem(address);
begin
    if problem is not null then
        perform outboxd.refuse(field, problem, 'Give one bare address, local-part@domain, without a name or brackets.');
    end if;
end
$$;

-- A value that goes into one header line: no control characters (so no CR or LF), bounded, foldable.
create function outboxd.check_line(field text, value text, max_octets integer) returns void language plpgsql as $$
begin
    if value ~ '[\u0001-\u001f\u007f-\u009f]' then
        perform outboxd.refuse(field, 'has a control character, such as a line break', 'Remove it: a header is one line.');
    elsif octet_length(value) > max_octets then
        perform outboxd.refuse(field, format('is %s octets; at most %s are allowed', octet_length(value), max_octets), 'Shorten it.');
    end if;
end
$$;

create function outboxd.check_headers(headers jsonb) returns void language plpgsql as $$
declare
    header jsonb;
    field text;
    i integer := 0;
    name text;
    remedy constant text := 'Give an array of [name, value] pairs of strings.';
begin
    if jsonb_typeof(headers) <> 'array' then
        perform outboxd.refuse('headers', 'is not an array', remedy);
    elsif jsonb_array_length(headers) > 50 then
        perform outboxd.refuse('headers', 'has over 50 entries', 'Give fewer headers.');
    end if;
    for header in select * from jsonb_array_elements(headers) loop
        field := format('headers[%s]', i);
        if jsonb_typeof(header) <> 'array' or jsonb_array_length(header) <> 2
                or jsonb_typeof(header -> 0) <> 'string' or jsonb_typeof(header -> 1) <> 'string' then
            perform outboxd.refuse(field, 'is not a [name, value] pair of strings', remedy);
        end if;
        name := header ->> 0;
        -- RFC 5322, 3.6.8: printable ASCII without the colon.
        if name !~ '^[\u0021-\u0039\u003b-\u007e]{1,76}$' then
            perform outboxd.refuse(field, 'has a name that is not a header name', 'Use printable ASCII without a colon, at most 76 characters.');
        elsif lower(name) ~ '^(from|to|cc|bcc|sender|reply-to|subject|date|message-id|mime-version|content-.*|return-path|received|dkim-signature|resent-.*|auto-submitted|list-unsubscribe|list-unsubscribe-post|x-notification-id|resend-idempotency-key)$' then
            perform outboxd.refuse(field, format('sets %s, which outboxd sets itself', name), 'Remove it, or use the parameter of that name.');
        end if;
        -- Name, colon, space and value fit one line, so that a value that cannot be folded is legal (RFC 5322, 2.1.1).
        perform outboxd.check_line(field, header ->> 1, 996 - octet_length(name));
        i := i + 1;
    end loop;
end
$$;

-- Checks attachments and returns their decoded size.
create function outboxd.check_attachments(attachments jsonb) returns bigint language plpgsql as $$
declare
    attachment jsonb;
    field text;
    i integer := 0;
    total bigint := 0;
    remedy constant text := 'Give an array of {"filename", "content_type", "content"} with content in base64.';
begin
    if jsonb_typeof(attachments) <> 'array' then
        perform outboxd.refuse('attachments', 'is not an array', remedy);
    elsif jsonb_array_length(attachments) > 20 then
        perform outboxd.refuse('attachments', 'has over 20 entries', 'Give fewer attachments.');
    end if;
    for attachment in select * from jsonb_array_elements(attachments) loop
        field := format('attachments[%s]', i);
        if jsonb_typeof(attachment) <> 'object'
                or coalesce(jsonb_typeof(attachment -> 'filename'), '') <> 'string'
                or coalesce(jsonb_typeof(attachment -> 'content_type'), '') <> 'string'
                or coalesce(jsonb_typeof(attachment -> 'content'), '') <> 'string'
                or (attachment - 'filename' - 'content_type' - 'content') <> '{}' then
            perform outboxd.refuse(field, 'is not an object of filename, content_type and content', remedy);
        end if;
        if attachment ->> 'filename' !~ '^[^\u0001-\u001f\u007f-\u009f/\\]+$' or attachment ->> 'filename' !~ '\S'
                or octet_length(attachment ->> 'filename') > 255 then
            perform outboxd.refuse(field || '.filename', 'is blank, over 255 octets, or has a control character or a path separator', 'Give a plain file name.');
        elsif octet_length(attachment ->> 'content_type') > 255 or attachment ->> 'content_type' ~* '^(multipart|message)/'
                or attachment ->> 'content_type' !~ '^[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(; ?[A-Za-z0-9!#$&^_.+-]{1,100}=([A-Za-z0-9!#$&^_.+-]{1,100}|"[^"\u0001-\u001f\\]{0,100}"))*$' then
            perform outboxd.refuse(field || '.content_type', 'is not a media type that can be attached', 'Give type/subtype, such as application/pdf; not multipart or message (RFC 2045, 6.4).');
        end if;
        begin
            total := total + octet_length(decode(attachment ->> 'content', 'base64'));
        exception when invalid_parameter_value then
            perform outboxd.refuse(field || '.content', 'is not base64', 'Encode it with the standard alphabet and padding (RFC 4648, 4).');
        end;
        i := i + 1;
    end loop;
    if total > 10485760 then
        perform outboxd.refuse('attachments', 'are over 10485760 bytes together', 'Send a link instead.');
    end if;
    return total;
end
$$;

-- A hint that there is work, at most one every 10 ms in the whole database. Polling is the guarantee.
create function outboxd.hint() returns void language plpgsql as $$
declare
    slot bigint := (extract(epoch from clock_timestamp()) * 100)::bigint;
begin
    if (select last_value < slot from outboxd.hint_slot) then
        perform setval('outboxd.hint_slot', slot);
        perform pg_notify('outboxd', '');
    end if;
end
$$;

create function outboxd.enqueue(
    account_id text,
    sender text,
    recipient text,
    subject text,
    body_text text default null,
    body_html text default null,
    sender_name text default null,
    recipient_name text default null,
    reply_to text default null,
    headers jsonb default '[]',
    attachments jsonb default '[]',
    list_unsubscribe text default null,
    list_unsubscribe_post boolean default false,
    route text default 'default',
    priority integer default 5,
    not_before timestamptz default null,
    expires_at timestamptz default null,
    dedup_key text default null,
    message_ref text default null
) returns uuid language plpgsql volatile as $$
#variable_conflict use_column
declare
    new_id uuid := outboxd.uuid_v7();
    old_id uuid;
    old_fingerprint bytea;
    fingerprint bytea;
    due timestamptz := greatest(coalesce(enqueue.not_before, now()), now());
    size bigint;
begin
    if enqueue.account_id is null or octet_length(enqueue.account_id) not between 1 and 200 then
        perform outboxd.refuse('account_id', 'is missing, empty or over 200 octets', 'Name the account that the notification belongs to.');
    elsif enqueue.sender is null then
        perform outboxd.refuse('sender', 'is missing', 'Give the address that the message comes from.');
    elsif enqueue.recipient is null then
        perform outboxd.refuse('recipient', 'is missing', 'Give the address that the message goes to.');
    elsif enqueue.subject is null then
        perform outboxd.refuse('subject', 'is missing', 'Give a subject, which may be empty.');
    elsif coalesce(enqueue.body_text, '') = '' and coalesce(enqueue.body_html, '') = '' then
        perform outboxd.refuse('body_text', 'is missing or empty, and so is body_html', 'Give at least one of the two.');
    elsif octet_length(enqueue.body_text) > 2097152 then
        perform outboxd.refuse('body_text', 'is over 2097152 octets', 'Shorten it, or attach it.');
    elsif octet_length(enqueue.body_html) > 2097152 then
        perform outboxd.refuse('body_html', 'is over 2097152 octets', 'Shorten it, or attach it.');
    elsif enqueue.priority is null or enqueue.priority not between 0 and 9 then
        perform outboxd.refuse('priority', 'is not between 0 (first) and 9 (last)', 'Leave it out for 5.');
    elsif enqueue.route is null or octet_length(enqueue.route) not between 1 and 100 then
        perform outboxd.refuse('route', 'is missing, empty or over 100 octets', 'Leave it out for the default route.');
    elsif octet_length(enqueue.dedup_key) not between 1 and 200 then
        perform outboxd.refuse('dedup_key', 'is empty or over 200 octets', 'Give a key made once for this intent, or leave it out.');
    elsif octet_length(enqueue.message_ref) not between 1 and 200 then
        perform outboxd.refuse('message_ref', 'is empty or over 200 octets', 'Give your own id of the message, or leave it out.');
    elsif not isfinite(due) or due > now() + interval '1 year' then
        perform outboxd.refuse('not_before', 'is over a year away', 'Enqueue it nearer to its time.');
    elsif enqueue.expires_at <= due then
        perform outboxd.refuse('expires_at', 'is not after the time at which it is first due', 'Give a later time, or leave it out.');
    elsif not isfinite(enqueue.expires_at) then
        perform outboxd.refuse('expires_at', 'is not a time', 'Give a time, or leave it out.');
    elsif enqueue.headers is null or enqueue.attachments is null or enqueue.list_unsubscribe_post is null then
        perform outboxd.refuse('headers', 'or attachments or list_unsubscribe_post is null', 'Leave it out instead.');
    end if;
    perform outboxd.check_address('sender', enqueue.sender);
    perform outboxd.check_address('recipient', enqueue.recipient);
    perform outboxd.check_line('subject', enqueue.subject, 989);
    if enqueue.sender_name is not null then
        perform outboxd.check_line('sender_name', enqueue.sender_name, 200);
    end if;
    if enqueue.recipient_name is not null then
        perform outboxd.check_line('recipient_name', enqueue.recipient_name, 200);
    end if;
    if enqueue.reply_to is not null then
        perform outboxd.check_address('reply_to', enqueue.reply_to);
    end if;
    if enqueue.list_unsubscribe is not null then
        perform outboxd.check_line('list_unsubscribe', enqueue.list_unsubscribe, 900);
        -- RFC 2369, 3.2 and RFC 8058, 3.1.
        if enqueue.list_unsubscribe !~ '^(https://|mailto:)[\u0021-\u003b\u003d\u003f-\u007e]+$' then
            perform outboxd.refuse('list_unsubscribe', 'is not an https or mailto URI', 'Give one URI in ASCII, without angle brackets.');
        end if;
    end if;
    if enqueue.list_unsubscribe_post and coalesce(enqueue.list_unsubscribe, '') !~ '^https://' then
        perform outboxd.refuse('list_unsubscribe_post', 'needs an https URI in list_unsubscribe', 'Give one, or leave it out (RFC 8058, 3.1).');
    end if;
    size := octet_length(enqueue.subject) + coalesce(octet_length(enqueue.body_text), 0) + coalesce(octet_length(enqueue.body_html), 0);
    if enqueue.headers <> '[]' then
        perform outboxd.check_headers(enqueue.headers);
        size := size + octet_length(enqueue.headers::text);
    end if;
    if enqueue.attachments <> '[]' then
        size := size + outboxd.check_attachments(enqueue.attachments);
    end if;
    if enqueue.dedup_key is not null then
        -- Version 1: SHA-256 over the canonical text of a jsonb array of the content's fields in this order. Route,
        -- priority, schedule and expiry say how to deliver, not what, and are left out.
        fingerprint := sha256(convert_to('v1' || jsonb_build_array(
            enqueue.sender, enqueue.sender_name, enqueue.recipient, enqueue.recipient_name, enqueue.reply_to,
            enqueue.subject, enqueue.body_text, enqueue.body_html, enqueue.headers, enqueue.attachments,
            enqueue.list_unsubscribe, enqueue.list_unsubscribe_post, enqueue.message_ref)::text, 'UTF8'));
    end if;

    insert into outboxd.outbox (id, account_id, message_ref, dedup_key, fingerprint, sender, sender_name, recipient,
        recipient_name, reply_to, subject, body_text, body_html, headers, attachments, list_unsubscribe, list_unsubscribe_post)
    values (new_id, enqueue.account_id, enqueue.message_ref, enqueue.dedup_key, fingerprint, enqueue.sender, enqueue.sender_name,
        enqueue.recipient, enqueue.recipient_name, enqueue.reply_to, enqueue.subject, enqueue.body_text, enqueue.body_html,
        enqueue.headers, enqueue.attachments, enqueue.list_unsubscribe, enqueue.list_unsubscribe_post)
    on conflict (account_id, dedup_key) where dedup_key is not null do nothing;
    if not found then
        -- The other transaction has committed, so a new statement sees its row.
        select o.id, o.fingerprint into old_id, old_fingerprint
            from outboxd.outbox o where o.account_id = enqueue.account_id and o.dedup_key = enqueue.dedup_key;
        if old_fingerprint is distinct from fingerprint then
            raise exception 'dedup_key: was used for other content (notification %)', old_id
                using errcode = 'OB002', column = 'dedup_key',
                hint = 'A key names one intent: use a new key for new content, or send the same content again.';
        end if;
        return old_id;
    end if;

    insert into outboxd.delivery (notification_id, account_id, route, priority, size_bytes, first_due_at, expires_at, due_at, ready)
    values (new_id, enqueue.account_id, enqueue.route, enqueue.priority::smallint, size::integer, due, enqueue.expires_at, due, due <= now());
    if due <= now() then
        perform outboxd.hint();
    end if;
    return new_id;
end
$$;

comment on function outboxd.enqueue is
    'Stores one notification in the caller''s transaction and returns its id. Errors: OB001 a value is refused (COLUMN names it), OB002 the dedup key was used for other content.';
