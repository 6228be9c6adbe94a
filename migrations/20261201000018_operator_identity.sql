-- How operators prove who they are: by a token, or by an identity provider's word (OpenID Connect).

set local lock_timeout = '5s';

alter table outboxd.operator
    -- Who they are to the identity provider, by the claim that the configuration names. One without a token has a hash that no token
    -- has.
    add column identity text collate "C" unique
        constraint operator_identity_size check (octet_length(identity) between 1 and 300),
    -- The first octets of the token's SHA-256: who guesses is refused at once, without the time and memory that its hash takes on
    -- purpose. Of a token of 256 random bits they tell nothing that helps. Null for tokens of an earlier release.
    add column token_check bytea constraint operator_token_check_size check (octet_length(token_check) = 4);
