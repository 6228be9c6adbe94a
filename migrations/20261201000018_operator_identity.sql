-- Operators whom an identity provider knows (OpenID Connect). One without a token has a hash that no token has.

set local lock_timeout = '5s';

alter table outboxd.operator
    -- Who they are to the identity provider, by the claim that the configuration names.
    add column identity text collate "C" unique
        constraint operator_identity_size check (octet_length(identity) between 1 and 300);
