-- The console: who may sign in, and who is signed in.

set local lock_timeout = '5s';

create table outboxd.operator (
    id uuid primary key,
    name text collate "C" not null unique constraint operator_name_size check (octet_length(name) between 1 and 200),
    role text collate "C" not null constraint operator_role_known check (role in ('viewer', 'operator', 'admin')),
    -- Argon2id, in the PHC string format.
    token_hash text not null,
    created_at timestamptz not null default now(),
    created_by text not null,
    disabled_at timestamptz
);

comment on table outboxd.operator is 'Who may sign in to the console, and what they may do there. Only hashes of tokens are kept.';

create table outboxd.session (
    -- SHA-256 of what the cookie holds, which is random.
    id_hash bytea primary key constraint session_id_hash_size check (octet_length(id_hash) = 32),
    operator_id uuid not null references outboxd.operator (id),
    created_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    expires_at timestamptz not null
);

comment on table outboxd.session is 'Who is signed in to the console.';

create index session_operator on outboxd.session (operator_id);
create index session_expires_at on outboxd.session (expires_at);
