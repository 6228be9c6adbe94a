-- The operator's half: decisions on record, pauses, replays.
--
--   decision      who decided what, why and when, with what it was before and after; only ever added to
--   pause         what is not to be claimed for now
--   replay        a durable operation that makes many rows pending again, at a rate
--   replay_item   each row of a replay, as it was planned and what became of it
--
-- New columns have defaults that the previous release's statements leave alone.

set local lock_timeout = '5s';

create table outboxd.decision (
    id bigint generated always as identity primary key,
    decided_at timestamptz not null default clock_timestamp(),
    decided_by text not null constraint decision_decided_by_size check (octet_length(decided_by) between 1 and 200),
    action text collate "C" not null constraint decision_action_size check (octet_length(action) between 1 and 100),
    reason text not null constraint decision_reason_size check (octet_length(reason) between 1 and 2000),
    notification_id uuid,
    replay_id uuid,
    -- What it was about, where that is no notification: `provider primary`, `account acme`.
    subject text constraint decision_subject_size check (octet_length(subject) between 1 and 300),
    before jsonb,
    after jsonb
);

comment on table outboxd.decision is 'Every decision of a person: who, what, why, when, before and after.';

create index decision_notification on outboxd.decision (notification_id) where notification_id is not null;
create index decision_replay on outboxd.decision (replay_id) where replay_id is not null;

create trigger decision_never_changes before update or delete on outboxd.decision
    for each row execute function outboxd.refuse_change('what was decided stays on record');
create trigger decision_never_truncated before truncate on outboxd.decision
    for each statement execute function outboxd.refuse_change('what was decided stays on record');

create table outboxd.pause (
    kind text collate "C" not null constraint pause_kind_known check (kind in ('all', 'provider', 'account')),
    -- Empty for `all`.
    name text collate "C" not null,
    since timestamptz not null default now(),
    paused_by text not null,
    reason text not null,
    primary key (kind, name),
    constraint pause_named check ((kind = 'all') = (name = ''))
);

comment on table outboxd.pause is 'What is not to be claimed. What is under way ends as usual.';

create table outboxd.replay (
    id uuid primary key,
    created_at timestamptz not null default now(),
    created_by text not null,
    reason text not null,
    -- What was asked for, as the command line had it.
    filter jsonb not null,
    state text collate "C" not null default 'planned'
        constraint replay_state_known check (state in ('planned', 'running', 'paused', 'cancelled', 'done')),
    -- Whether rows whose earlier attempt may have been accepted, and for which nobody deduplicates, are in it.
    risky_included boolean not null default false,
    rate_per_second double precision constraint replay_rate_range check (rate_per_second > 0),
    started_at timestamptz,
    ended_at timestamptz
);

comment on table outboxd.replay is 'A replay: planned once, then run at a rate, paused, cancelled or done.';

create table outboxd.replay_item (
    replay_id uuid not null references outboxd.replay (id),
    notification_id uuid not null,
    class text collate "C" not null
        constraint replay_item_class_known check (class in ('safe', 'within_window', 'risky', 'not_possible')),
    -- As it was when it was planned: a row that has changed since is left alone.
    fence bigint not null,
    state text collate "C" not null,
    done_at timestamptz,
    outcome text collate "C" constraint replay_item_outcome_known check (outcome in ('replayed', 'changed', 'expired', 'left_out')),
    primary key (replay_id, notification_id),
    constraint replay_item_done_whole check ((done_at is null) = (outcome is null))
);

-- What a run has still to do.
create index replay_item_open on outboxd.replay_item (replay_id, notification_id) where done_at is null;

alter table outboxd.delivery
    -- The replay that made it pending, until its next outcome; each attempt names the one that it was made for.
    add column replay_id uuid,
    -- Since when the deadline by policy counts, where a person started it anew; else since first_due_at.
    add column renewed_at timestamptz,
    -- A person decided that it be sent once more although an earlier attempt may have been accepted (G3 (c)).
    add column resend_decided boolean not null default false,
    -- A person decided to send again what was known to be accepted: what is proved of attempts up to this one says nothing new.
    add column sent_again_after integer,
    -- Evidence came while it was being transmitted: it is weighed again when its worker has settled it, or lost it.
    add column weigh_again boolean not null default false;

alter table outboxd.attempt add column replay_id uuid;

-- What a person looks for: what failed, and what is in doubt. Neither names a column that *begin* changes.
create index delivery_failed on outboxd.delivery (notification_id) where reason is not null;
create index delivery_doubt on outboxd.delivery (doubt_since) where doubt_since is not null;

-- Whether trying again cannot change what the evidence proves: a refusal for good, not for now.
alter table outboxd.evidence add column for_good boolean not null default false;

-- As in the first migration, and besides: proof that what was in doubt was accepted after all also moves what has failed.
drop trigger legal_transition on outboxd.delivery;
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
            'sent>bounced', 'sent>pending', 'bounced>pending', 'failed>pending', 'failed>cancelled', 'failed>sent',
            'failed>bounced'))
    ) execute function outboxd.refuse_transition();

create index delivery_weigh_again on outboxd.delivery (notification_id) where weigh_again;
