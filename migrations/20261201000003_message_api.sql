-- The message API's half: what an operation stores besides its notifications.
--
--   receipt  the stored answer to an operation; its key is the operation's name
--   message  what the operation stores
--   token    who may perform which operations for which account
--
-- `outboxd.reserve` and `outboxd.complete` are for any API that wants the same promise for operations of its own
-- (docs/own-api.md); `outboxd.accept_message` is POST /v1/messages, made of them.
--
-- Errors: OB003 the request key was used for other content; OB004 a receipt without an answer; OB005 a receipt was removed
-- while it was read, so ask again; OB006 the operation's content was erased.

set local lock_timeout = '5s';

create table outboxd.receipt (
    account_id text collate "C" not null
        constraint receipt_account_id_size check (octet_length(account_id) between 1 and 200),
    operation text collate "C" not null
        constraint receipt_operation_size check (octet_length(operation) between 1 and 100),
    request_key text collate "C" not null
        constraint receipt_request_key_size check (octet_length(request_key) between 1 and 200),
    -- The fingerprint of the content: its first octet is the version.
    payload_hash bytea constraint receipt_payload_hash_size check (octet_length(payload_hash) between 1 and 100),
    response_status smallint constraint receipt_response_status_range check (response_status between 100 and 599),
    -- Exactly what was answered: text, since jsonb would not give back the same bytes.
    response_body text,
    -- The notifications of this operation: the receipt stays until they are final.
    notification_ids uuid[] not null default '{}',
    created_at timestamptz not null default now(),
    erased_at timestamptz,
    primary key (account_id, operation, request_key),
    constraint receipt_answer_whole check ((response_status is null) = (response_body is null)),
    constraint receipt_content_or_erased check ((payload_hash is null) = (erased_at is not null))
) with (fillfactor = 70);

comment on table outboxd.receipt is 'The stored answer to each operation: one for each account, operation and request key.';

-- Retention walks from the oldest.
create index receipt_created_at on outboxd.receipt (created_at);

-- No transaction commits a reservation without its answer. A complete receipt never gets as far as the function.
create function outboxd.check_receipt() returns trigger language plpgsql as $$
begin
    perform from outboxd.receipt r
        where r.account_id = new.account_id and r.operation = new.operation and r.request_key = new.request_key
            and r.response_status is null;
    if found then
        raise exception 'outboxd: the receipt of % % has no answer', new.operation, new.request_key
            using errcode = 'OB004', hint = 'Call outboxd.complete in the transaction that called outboxd.reserve.';
    end if;
    return null;
end
$$;

create constraint trigger receipt_is_complete after insert on outboxd.receipt deferrable initially deferred
    for each row when (new.response_status is null) execute function outboxd.check_receipt();

create table outboxd.message (
    id uuid primary key,
    account_id text collate "C" not null,
    operation text collate "C" not null,
    request_key text collate "C" not null,
    created_at timestamptz not null default now(),
    -- The canonical form that the fingerprint is taken of.
    content jsonb,
    notification_ids uuid[] not null default '{}',
    erased_at timestamptz,
    constraint message_content_or_erased check ((content is null) = (erased_at is not null))
);

comment on table outboxd.message is 'What POST /v1/messages stores; exists if and only if its receipt and its notifications were committed.';

create table outboxd.token (
    id uuid primary key,
    -- SHA-256 of the token, which is random: nothing that could be guessed needs a slow hash.
    token_hash bytea not null unique constraint token_hash_size check (octet_length(token_hash) = 32),
    account_id text collate "C" not null
        constraint token_account_id_size check (octet_length(account_id) between 1 and 200),
    operations text[] not null constraint token_operations_some check (cardinality(operations) > 0),
    label text not null default '' constraint token_label_size check (octet_length(label) <= 200),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);

comment on table outboxd.token is 'Who may perform which operations for which account. Only hashes are kept.';

-- Reserves an operation in the caller's transaction: `is_new` says that the caller now does its work and then calls
-- outboxd.complete; else the stored answer is given.
--
-- Waits for another transaction that has reserved the same operation, at most for lock_timeout. Needs READ COMMITTED: under
-- a stricter level PostgreSQL itself refuses (40001) what it would have to read.
create function outboxd.reserve(
    account_id text,
    operation text,
    request_key text,
    payload_hash bytea,
    out is_new boolean,
    out response_status smallint,
    out response_body text
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    known outboxd.receipt;
begin
    -- A receipt that retention removes between the conflict and the read is looked for again, within bounds.
    for round in 1 .. 3 loop
        insert into outboxd.receipt (account_id, operation, request_key, payload_hash)
            values (reserve.account_id, reserve.operation, reserve.request_key, reserve.payload_hash)
            on conflict (account_id, operation, request_key) do nothing;
        if found then
            is_new := true;
            return;
        end if;
        -- The other transaction has committed, so a new statement sees its row.
        select * into known from outboxd.receipt r
            where r.account_id = reserve.account_id and r.operation = reserve.operation and r.request_key = reserve.request_key;
        continue when not found;
        if known.erased_at is not null then
            raise exception 'request_key: its content was erased' using errcode = 'OB006', column = 'request_key',
                hint = 'The key stays taken. A new intent needs a new key.';
        elsif known.payload_hash <> reserve.payload_hash then
            raise exception 'request_key: was used for other content' using errcode = 'OB003', column = 'request_key',
                hint = 'A key names one intent: use a new key for new content, or send the same content again.';
        elsif known.response_status is null then
            raise exception 'outboxd: the receipt of % % has no answer', reserve.operation, reserve.request_key
                using errcode = 'OB004', hint = 'This must not happen: somebody wrote to outboxd.receipt without outboxd.complete.';
        end if;
        is_new := false;
        response_status := known.response_status;
        response_body := known.response_body;
        return;
    end loop;
    raise exception 'outboxd: the receipt of % % was removed while it was read', reserve.operation, reserve.request_key
        using errcode = 'OB005', hint = 'Ask again.';
end
$$;

comment on function outboxd.reserve is
    'Reserves an operation in the caller''s transaction, or gives its stored answer. Errors: OB003 used for other content, OB004 no answer stored, OB005 ask again, OB006 erased.';

-- Stores the answer to an operation that the same transaction has reserved.
create function outboxd.complete(
    account_id text,
    operation text,
    request_key text,
    response_status integer,
    response_body text,
    notification_ids uuid[] default '{}'
) returns void language plpgsql volatile as $$
#variable_conflict use_column
begin
    update outboxd.receipt r
        set response_status = complete.response_status::smallint, response_body = complete.response_body,
            notification_ids = complete.notification_ids
        where r.account_id = complete.account_id and r.operation = complete.operation
            and r.request_key = complete.request_key and r.response_status is null;
    if not found then
        raise exception 'outboxd: % % is not reserved', complete.operation, complete.request_key
            using errcode = 'OB004', hint = 'Call outboxd.reserve first, in the same transaction, and complete it once.';
    end if;
end
$$;

comment on function outboxd.complete is 'Stores the answer to an operation that the same transaction has reserved.';

-- POST /v1/messages: receipt, message and notifications in one statement, and so in one transaction. `content` is the
-- canonical form of the validated body.
create function outboxd.accept_message(
    account_id text,
    operation text,
    request_key text,
    payload_hash bytea,
    content jsonb,
    out is_new boolean,
    out response_status smallint,
    out response_body text
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    message_id uuid;
    ids uuid[] := '{}';
    recipient jsonb;
    sender text := content ->> 'sender';
    sender_name text := content ->> 'sender_name';
    reply_to text := content ->> 'reply_to';
    subject text := content ->> 'subject';
    body_text text := content ->> 'body_text';
    body_html text := content ->> 'body_html';
    headers jsonb := content -> 'headers';
    attachments jsonb := content -> 'attachments';
    list_unsubscribe text := content ->> 'list_unsubscribe';
    list_unsubscribe_post boolean := content ->> 'list_unsubscribe_post';
    route text := content ->> 'route';
    priority integer := content ->> 'priority';
    not_before timestamptz := content ->> 'not_before';
    expires_at timestamptz := content ->> 'expires_at';
begin
    select * into is_new, response_status, response_body
        from outboxd.reserve(accept_message.account_id, accept_message.operation, accept_message.request_key, accept_message.payload_hash);
    if not is_new then
        return;
    end if;
    message_id := outboxd.uuid_v7();
    for recipient in select * from jsonb_array_elements(accept_message.content -> 'recipients') loop
        ids := ids || outboxd.enqueue(
            account_id => accept_message.account_id, sender => sender, recipient => recipient ->> 'address', subject => subject,
            body_text => body_text, body_html => body_html, sender_name => sender_name, recipient_name => recipient ->> 'name',
            reply_to => reply_to, headers => headers, attachments => attachments, list_unsubscribe => list_unsubscribe,
            list_unsubscribe_post => list_unsubscribe_post, route => route, priority => priority, not_before => not_before,
            expires_at => expires_at, message_ref => message_id::text);
    end loop;
    insert into outboxd.message (id, account_id, operation, request_key, content, notification_ids)
        values (message_id, accept_message.account_id, accept_message.operation, accept_message.request_key,
            accept_message.content, ids);
    response_status := 201;
    response_body := jsonb_build_object('code', 'accepted', 'message_id', message_id, 'notification_ids', to_jsonb(ids),
        'created_at', to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text;
    perform outboxd.complete(accept_message.account_id, accept_message.operation, accept_message.request_key,
        response_status, response_body, ids);
end
$$;

comment on function outboxd.accept_message is
    'POST /v1/messages: stores the receipt, the message and its notifications, or gives the stored answer. Errors: those of outboxd.reserve and outboxd.enqueue.';
