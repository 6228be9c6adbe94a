-- Which attempt is proved to have been accepted, on the row itself.
--
-- A statement that waits for a row, or comes to it late, sees the row as it is by then but every other table as it was when
-- the statement began (PostgreSQL documentation, 13.2.1 "Read Committed Isolation Level"). So what settles an attempt and
-- what sweeps a lost lease must not look proof up in `evidence`: what commits meanwhile would be passed over for ever.

set local lock_timeout = '5s';

-- The latest attempt that evidence proves to have been accepted.
alter table outboxd.delivery add column proven_attempt integer;

-- By a trigger, so that no writer of evidence can forget it, the previous release's neither.
create function outboxd.note_proof() returns trigger language plpgsql as $$
begin
    update outboxd.delivery d set proven_attempt = greatest(d.proven_attempt, new.attempt_number)
        where d.notification_id = new.notification_id and new.attempt_number > coalesce(d.sent_again_after, 0);
    return null;
end
$$;

create trigger proof_is_noted after insert on outboxd.evidence for each row
    when (new.proves in ('accepted', 'delivered', 'bounced')) execute function outboxd.note_proof();

update outboxd.delivery d set proven_attempt = e.number
    from (
        select notification_id, max(attempt_number) as number from outboxd.evidence
        where proves in ('accepted', 'delivered', 'bounced') group by notification_id
    ) e
    where e.notification_id = d.notification_id;
