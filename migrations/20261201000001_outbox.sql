-- The outbox: what producers write, what workers know, and the rules that hold between the two.
--
-- Three tables, split by how they change:
--   outbox    identity and content: written once, in the producer's transaction, and never changed
--   delivery  the state of each notification: narrow, so that a change of state rewrites little
--   attempt   every try to hand a notification to a provider, and what became of it
-- and `evidence`, which is only ever added to.
--
-- An index of `delivery` never names `state`, directly or in its predicate: *begin* changes `state` alone and so stays a
-- heap-only update (PostgreSQL documentation, 73.7 "Heap-Only Tuples"). Nullable columns stand in for it, bound to the
-- state by CHECKs: `due_at` for pending, `lease_until` for claimed and transmitting, `closes_at` for uncertain.

set local lock_timeout = '5s';

create table outboxd.outbox (
    id uuid primary key,
    account_id text collate "C" not null
        constraint outbox_account_id_size check (octet_length(account_id) between 1 and 200),
    message_ref text
        constraint outbox_message_ref_size check (octet_length(message_ref) between 1 and 200),
    dedup_key text collate "C"
        constraint outbox_dedup_key_size check (octet_length(dedup_key) between 1 and 200),
    fingerprint bytea,
    created_at timestamptz not null default now(),
    sender text not null,
    sender_name text,
    recipient text not null,
    recipient_name text,
    reply_to text,
    subject text not null,
    body_text text,
    body_html text,
    headers jsonb not null default '[]',
    attachments jsonb not null default '[]',
    list_unsubscribe text,
    list_unsubscribe_post boolean not null default false,
    constraint outbox_fingerprint_with_dedup_key check ((dedup_key is null) = (fingerprint is null))
);

comment on table outboxd.outbox is 'Identity and content of each notification. Written by outboxd.enqueue, never changed.';

-- A producer's key names one intent of one account.
create unique index outbox_dedup_key on outboxd.outbox (account_id, dedup_key) where dedup_key is not null;

create function outboxd.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'outboxd: % of % is not allowed: %', tg_op, tg_table_name, tg_argv[0]
        using errcode = 'OB009', hint = 'Enqueue a new notification instead.';
end
$$;

create trigger content_never_changes before update on outboxd.outbox
    for each row execute function outboxd.refuse_change('what was promised to be sent does not change');

create table outboxd.delivery (
    notification_id uuid primary key references outboxd.outbox (id),
    account_id text collate "C" not null,
    route text collate "C" not null
        constraint delivery_route_size check (octet_length(route) between 1 and 100),
    priority smallint not null
        constraint delivery_priority_range check (priority between 0 and 9),
    size_bytes integer not null,
    first_due_at timestamptz not null,
    -- The producer's own expiry; without one the worker's `retry.deadline` counts from first_due_at.
    expires_at timestamptz,

    state text collate "C" not null default 'pending'
        constraint delivery_state_known check (state in
            ('pending', 'claimed', 'transmitting', 'sent', 'bounced', 'uncertain', 'unresolved', 'failed', 'cancelled')),
    changed_at timestamptz not null default now(),
    -- Why it failed.
    reason text collate "C"
        constraint delivery_reason_known check (reason in ('refused', 'exhausted', 'expired', 'invalid')),

    -- Pending: when it may be claimed. `ready` once that time has come, so that the claim reads ready rows only.
    due_at timestamptz,
    ready boolean not null default false,

    -- Claimed, transmitting.
    fence bigint not null default 0,
    worker text,
    lease_until timestamptz,

    attempts integer not null default 0,
    tries smallint not null default 0,
    suspicions smallint not null default 0,
    lost_claims smallint not null default 0,

    -- The first attempt that may have been accepted and that nothing has settled: since when (its begin), until when
    -- evidence is awaited, with whom it could be deduplicated, until when a resend may begin, when one is planned.
    doubt_since timestamptz,
    doubt_until timestamptz,
    doubt_scope text collate "C",
    resend_until timestamptz,
    resend_at timestamptz,
    -- Uncertain: when its recovery window ends.
    closes_at timestamptz,

    -- The recipient may get it twice.
    duplicate_possible boolean not null default false,
    -- Evidence and record disagree, and a person has to look.
    contradiction boolean not null default false,

    constraint delivery_pending_is_due check ((state = 'pending') = (due_at is not null)),
    constraint delivery_ready_is_pending check (not ready or due_at is not null),
    constraint delivery_leased check ((state in ('claimed', 'transmitting')) = (lease_until is not null)),
    constraint delivery_leased_by check ((lease_until is null) = (worker is null)),
    constraint delivery_failed_has_reason check ((state = 'failed') = (reason is not null)),
    -- Failed never hides a doubt.
    constraint delivery_failed_without_doubt check (state <> 'failed' or doubt_since is null),
    constraint delivery_uncertain_has_doubt check (state not in ('uncertain', 'unresolved') or doubt_since is not null),
    constraint delivery_uncertain_closes check ((state = 'uncertain') = (closes_at is not null)),
    constraint delivery_resend_is_uncertain check (resend_at is null or closes_at is not null),
    constraint delivery_doubt_whole check
        ((doubt_since is null) = (doubt_until is null) and (doubt_since is null) = (doubt_scope is null)
         and (resend_until is null or doubt_since is not null)),
    constraint delivery_counts check (attempts >= 0 and tries >= 0 and suspicions >= 0 and lost_claims >= 0 and fence >= 0)
) with (fillfactor = 70);

comment on table outboxd.delivery is 'The one state that each notification is in, and what decides the next.';

-- One index an access path. The claim: whose turn, then which of theirs.
create index delivery_ready on outboxd.delivery (route, account_id, priority, due_at) where ready and doubt_scope is null;
-- The claim of what is to be resent: only through the dedup scope that its doubt is in.
create index delivery_resending on outboxd.delivery (doubt_scope, due_at) where ready and doubt_scope is not null;
-- Pending, not yet due: retries and schedules.
create index delivery_scheduled on outboxd.delivery (due_at) where due_at is not null and not ready;
-- Leases that run out.
create index delivery_leased on outboxd.delivery (lease_until) where lease_until is not null;
-- Recovery windows that end, and resends that come due.
create index delivery_closing on outboxd.delivery (closes_at) where closes_at is not null;
create index delivery_resend on outboxd.delivery (resend_at) where resend_at is not null;
-- Waiting to be resent, and soon too late for it.
create index delivery_resend_until on outboxd.delivery (resend_until) where resend_until is not null and due_at is not null;
-- Waiting with an expiry of their own.
create index delivery_expiring on outboxd.delivery (expires_at) where expires_at is not null and due_at is not null;

-- The state machine, as in `src/domain/state.rs`. The condition is evaluated without a call, so that a legal change
-- costs next to nothing.
create function outboxd.refuse_transition() returns trigger language plpgsql as $$
begin
    raise exception 'outboxd: notification % may not go from % to % (fence % to %)',
            old.notification_id, old.state, new.state, old.fence, new.fence
        using errcode = 'OB008', hint = 'docs/state-machine.md lists the legal transitions.';
end
$$;

create trigger legal_transition before update on outboxd.delivery for each row
    when (
        new.fence < old.fence
        or new.notification_id <> old.notification_id
        or new.account_id <> old.account_id
        or new.first_due_at <> old.first_due_at
        or (old.state <> new.state and (old.state || '>' || new.state) not in (
            'pending>claimed', 'pending>failed', 'pending>uncertain', 'pending>sent', 'pending>bounced',
            'pending>cancelled',
            'claimed>transmitting', 'claimed>pending', 'claimed>failed', 'claimed>uncertain', 'claimed>sent',
            'claimed>bounced',
            'transmitting>sent', 'transmitting>pending', 'transmitting>failed', 'transmitting>uncertain',
            'uncertain>sent', 'uncertain>bounced', 'uncertain>pending', 'uncertain>failed', 'uncertain>unresolved',
            'uncertain>cancelled',
            'unresolved>sent', 'unresolved>bounced', 'unresolved>pending', 'unresolved>failed', 'unresolved>cancelled',
            'sent>bounced', 'sent>pending', 'bounced>pending', 'failed>pending', 'failed>cancelled'))
    ) execute function outboxd.refuse_transition();

create table outboxd.attempt (
    notification_id uuid not null,
    number integer not null constraint attempt_number_counts check (number > 0),
    fence bigint not null,
    worker text not null,
    provider text collate "C" not null,
    -- The terms in force when it was claimed: with whom it could be deduplicated and for how long, how long evidence is
    -- awaited, how long after *begin* a resend may begin (null: not by itself).
    dedup_scope text collate "C" not null,
    dedup_window interval,
    recovery_window interval not null,
    resend_room interval,
    claimed_at timestamptz not null default now(),
    begun_at timestamptz,
    ended_at timestamptz,
    -- Who ended it: the worker that settled it, the sweep of lost leases, or evidence that made it needless.
    ended_by text collate "C" constraint attempt_ended_by_known check (ended_by in ('worker', 'lease', 'evidence')),
    phase text collate "C" constraint attempt_phase_known check (phase in
        ('claim', 'compose', 'resolve', 'connect', 'tls', 'greeting', 'ehlo', 'auth', 'mail', 'rcpt', 'data', 'begin',
         'body', 'end_of_data')),
    outcome text collate "C" constraint attempt_outcome_known check (outcome in
        ('not_sent', 'deferred', 'refused', 'uncertain', 'sent')),
    reply_code smallint,
    enhanced_code text collate "C",
    reply_text text,
    error text,
    -- Whether it used up one of the notification's tries.
    counted boolean not null default false,
    primary key (notification_id, number),
    constraint attempt_ended_whole check
        ((ended_at is null) = (outcome is null) and (ended_at is null) = (ended_by is null) and (ended_at is null) = (phase is null)),
    -- Only what has begun can have been accepted.
    constraint attempt_accepted_after_begin check (outcome not in ('uncertain', 'sent') or begun_at is not null)
) with (fillfactor = 70);

-- The foreign key to delivery, checked once a statement: checked row by row it took half of a claim's time. No attempt is
-- recorded for a claim that delivery does not know of.
create function outboxd.check_attempts() returns trigger language plpgsql as $$
declare
    orphan uuid;
begin
    select a.notification_id into orphan from added a
        left join outboxd.delivery d on d.notification_id = a.notification_id
        where d.fence is distinct from a.fence or d.attempts <> a.number
        limit 1;
    if found then
        raise exception 'outboxd: an attempt for notification % without its claim', orphan using errcode = 'foreign_key_violation';
    end if;
    return null;
end
$$;

create trigger attempt_of_a_claim after insert on outboxd.attempt
    referencing new table as added for each statement execute function outboxd.check_attempts();

comment on table outboxd.attempt is 'Every try to hand one notification to one provider: durable before anything is sent.';

create table outboxd.evidence (
    id bigint generated always as identity primary key,
    notification_id uuid not null,
    attempt_number integer not null,
    kind text collate "C" not null constraint evidence_kind_known check (kind in
        ('late_result', 'provider_event', 'mail_log', 'bounce', 'statement')),
    proves text collate "C" not null constraint evidence_proves_known check (proves in
        ('accepted', 'not_accepted', 'bounced', 'delivered', 'inconclusive')),
    source text not null,
    reference text not null default '',
    detail jsonb not null default '{}',
    happened_at timestamptz,
    received_at timestamptz not null default now(),
    recorded_by text not null,
    foreign key (notification_id, attempt_number) references outboxd.attempt (notification_id, number),
    -- The same evidence twice is the same evidence.
    constraint evidence_once unique (notification_id, attempt_number, kind, source, reference, proves)
);

create trigger evidence_never_changes before update or delete on outboxd.evidence
    for each row execute function outboxd.refuse_change('evidence is only ever added');

-- When the last wake-up hint was given, in hundredths of a second: NOTIFY takes a database-wide lock at commit, so at
-- most one transaction in each slot of 10 ms carries one (see outboxd.hint).
create sequence outboxd.hint_slot as bigint minvalue 0 start 0;
