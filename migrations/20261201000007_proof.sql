-- Whether an attempt is proved to have been accepted, on the row itself.
--
-- A statement that waits for a row, or comes to it late, sees the row as it is by then but every other table as it was when
-- the statement began (PostgreSQL documentation, 13.2.1 "Read Committed Isolation Level"). So what settles an attempt and
-- what sweeps a lost lease must not look proof up in `evidence`: what commits meanwhile would be passed over for ever.

set local lock_timeout = '5s';

alter table outboxd.delivery add column proven boolean not null default false;

-- By a trigger, so that no writer of evidence can forget it, the previous release's neither.
create function outboxd.note_proof() returns trigger language plpgsql as $$
begin
    update outboxd.delivery d set proven = true where d.notification_id = new.notification_id and not d.proven;
    return null;
end
$$;

create trigger proof_is_noted after insert on outboxd.evidence for each row
    when (new.proves in ('accepted', 'delivered', 'bounced')) execute function outboxd.note_proof();

update outboxd.delivery d set proven = true
    where exists (
        select from outboxd.evidence e
        where e.notification_id = d.notification_id and e.proves in ('accepted', 'delivered', 'bounced'));
