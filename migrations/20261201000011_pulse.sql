-- What each worker says of its providers, so that others can be told: the breaker's state, and what attempts came to.
--
-- A worker writes a line of each every ten seconds. So a page about the last hour reads some hundreds of lines, however many
-- attempts there were; and the previous release, which writes none, is simply not heard of.

set local lock_timeout = '5s';

create table outboxd.pulse (
    worker text collate "C" not null,
    provider text collate "C" not null,
    heard_at timestamptz not null default now(),
    breaker text collate "C" not null
        constraint pulse_breaker_known check (breaker in ('closed', 'asked_to_wait', 'open', 'probing')),
    -- Until when it holds messages back; null where no time tells it.
    breaker_until timestamptz,
    under_way integer not null,
    connections integer not null,
    -- The last notification that the provider did not accept: its attempt tells why, for as long as that is kept.
    trouble_id uuid,
    trouble_at timestamptz,
    primary key (worker, provider)
);

comment on table outboxd.pulse is 'What each running worker last said of each of its providers.';

create table outboxd.tally (
    worker text collate "C" not null,
    -- Counts the worker's lines, so that one whose answer was lost is not written twice.
    number bigint not null,
    provider text collate "C" not null,
    at timestamptz not null default now(),
    not_sent integer not null,
    deferred integer not null,
    refused integer not null,
    uncertain integer not null,
    sent integer not null,
    -- How many of the accepted took up to each of the bounds in src/domain/tally.rs.
    took integer[] not null,
    primary key (worker, number, provider)
);

comment on table outboxd.tally is 'What the attempts with each provider came to, ten seconds a line, kept for a day.';

create index tally_at on outboxd.tally (at);
