use tokio_rustls::rustls::pki_types::ServerName;
use uuid::Uuid;

use super::*;
use crate::domain::outcome::{Phase, Reply};
use crate::mail::endpoint::{Auth, Security, Timeouts};
use crate::mail::trust;

fn settings(connections: u32, rate: Option<Rate>) -> ProviderSettings {
    let minute = Duration::from_secs(60);
    ProviderSettings {
        name: "primary".to_owned(),
        endpoint: Endpoint {
            host: "mail.example".to_owned(),
            port: 25,
            security: Security::Plaintext,
            tls: trust::nobody().unwrap(),
            server_name: ServerName::try_from("mail.example").unwrap(),
            auth: Some(Auth { mechanism: None, username: "u".to_owned(), secret: "hunter2".to_owned().into() }),
            hello: "app.example".to_owned(),
            timeouts: Timeouts::default(),
        },
        limits: Limits::default(),
        connections,
        rate,
        send_deadline: minute,
        breaker: BreakerSettings { threshold: 2, open_min: Duration::from_secs(5), open_max: minute },
        dedup: None,
        identity: Identity::new("example.org", None).unwrap(),
        on_uncertain: OnUncertain::Hold,
        recovery: RecoveryTerms { dedup_scope: "primary".to_owned(), window: minute, resend_room: None },
    }
}

fn provider(connections: u32, rate: Option<Rate>) -> (Arc<Provider>, Instant) {
    let now = Instant::now();
    (Arc::new(Provider::new(settings(connections, rate), now)), now)
}

/// Room that nothing but slots and tokens bounds.
fn free(messages: u32) -> Room {
    Room { messages, next_at: None, backed_off: false }
}

fn verdict(outcome: Outcome, blame: Blame, phase: Phase) -> Verdict {
    Verdict { outcome, phase, blame, reply: None, error: None }
}

fn reply(code: u16, enhanced: &str) -> Option<Reply> {
    Some(Reply { code, enhanced: Some(enhanced.to_owned()), text: String::new() })
}

fn id(n: u128) -> NotificationId {
    NotificationId(Uuid::from_u128(n))
}

const DOWN: (Outcome, Blame, Phase) = (Outcome::NotSent, Blame::Provider, Phase::Connect);

fn fail(provider: &Arc<Provider>, now: Instant) {
    provider.admit(now).unwrap().settle(id(1), &verdict(DOWN.0, DOWN.1, DOWN.2), None, now);
}

/// A provider whose breaker is open, and when it lets one message probe.
fn opened() -> (Arc<Provider>, Instant) {
    let (provider, now) = provider(4, None);
    fail(&provider, now);
    fail(&provider, now);
    let until = provider.room(now).next_at.expect("open");
    (provider, until)
}

#[test]
fn room_is_the_least_of_slots_rate_and_breaker() {
    let (slots, now) = provider(3, Some(Rate { per_second: 1.0, burst: 10 }));
    assert_eq!(slots.room(now), free(3));
    let (tokens, now) = provider(20, Some(Rate { per_second: 1.0, burst: 10 }));
    assert_eq!(tokens.room(now).messages, 10);
    let (opened, until) = opened();
    assert_eq!(opened.room(until), Room { messages: 1, next_at: None, backed_off: true });
}

#[test]
fn without_a_free_slot_only_the_end_of_a_message_makes_room() {
    let (provider, now) = provider(1, None);
    let ticket = provider.admit(now).unwrap();
    assert_eq!(provider.under_way(), 1);
    assert_eq!(provider.room(now), free(0));
    assert!(provider.admit(now).is_none());
    drop(ticket);
    assert_eq!(provider.room(now).messages, 1);
}

#[test]
fn without_a_token_the_room_says_when_the_next_one_comes() {
    let (provider, now) = provider(9, Some(Rate { per_second: 0.5, burst: 1 }));
    let ticket = provider.admit(now).unwrap();
    assert_eq!(provider.room(now), Room { next_at: Some(now + Duration::from_secs(2)), ..free(0) });
    ticket.unused();
    assert_eq!(provider.room(now).messages, 1, "a message that was not offered costs no token");
}

#[test]
fn a_message_that_never_reached_mail_gives_its_token_back_and_an_offered_one_does_not() {
    for (phase, left) in [(Phase::Connect, 2), (Phase::Auth, 2), (Phase::Mail, 1), (Phase::EndOfData, 1)] {
        let (provider, now) = provider(9, Some(Rate { per_second: 0.001, burst: 2 }));
        let ticket = provider.admit(now).unwrap();
        ticket.settle(id(1), &verdict(Outcome::NotSent, Blame::Notification, phase), None, now);
        assert_eq!(provider.room(now).messages, left, "{phase}");
    }
}

#[test]
fn an_outage_closes_the_room_and_one_accepted_probe_opens_it_again() {
    let (provider, until) = opened();
    let probe = provider.admit(until).unwrap();
    assert_eq!(provider.room(until), Room { messages: 0, next_at: None, backed_off: true });
    assert!(provider.admit(until).is_none(), "one probe at a time");
    probe.settle(id(2), &verdict(Outcome::Sent, Blame::Notification, Phase::EndOfData), None, until);
    assert_eq!(provider.room(until).messages, 4);
    assert!(provider.proven(until) && provider.standing(until) == Standing::Closed);
}

#[test]
fn a_probe_whose_task_dies_does_not_wedge_the_breaker() {
    let (provider, until) = opened();
    let ticket = provider.admit(until).unwrap();
    let died = std::thread::spawn(move || {
        let _ticket = ticket;
        std::panic::resume_unwind(Box::new("the task dies"));
    });
    assert!(died.join().is_err());
    assert_eq!(provider.room(Instant::now().max(until)).messages, 1);
}

#[test]
fn a_probe_refused_for_its_own_fault_lets_the_next_one_probe() {
    let (provider, until) = opened();
    let probe = provider.admit(until).unwrap();
    probe.settle(id(2), &verdict(Outcome::Refused, Blame::Notification, Phase::Rcpt), None, until);
    assert_eq!(provider.room(Instant::now().max(until)).messages, 1);
}

#[test]
fn a_provider_that_leaves_the_end_of_data_unanswered_is_left_alone() {
    let (provider, now) = provider(4, None);
    for n in 0..2 {
        let lost = verdict(Outcome::Uncertain, Blame::Notification, Phase::EndOfData);
        provider.admit(now).unwrap().settle(id(n), &lost, None, now);
    }
    assert_eq!(provider.room(now).messages, 0);
}

#[test]
fn a_reply_that_asks_to_slow_down_with_a_delay_pauses_the_provider() {
    let delay = Some(Duration::from_secs(20));
    let mut slow = verdict(Outcome::Deferred, Blame::Provider, Phase::Mail);
    for said in [reply(421, "4.3.2"), reply(450, "4.7.28")] {
        let (provider, now) = provider(4, None);
        slow.reply = said;
        provider.admit(now).unwrap().settle(id(1), &slow, delay, now);
        assert_eq!(
            provider.room(now),
            Room { messages: 0, next_at: Some(now + Duration::from_secs(20)), backed_off: true }
        );
    }
}

#[test]
fn greylisting_of_one_notification_does_not_pause_the_provider() {
    let (provider, now) = provider(4, None);
    let mut grey = verdict(Outcome::Deferred, Blame::Notification, Phase::Rcpt);
    grey.reply = reply(450, "4.7.1");
    provider.admit(now).unwrap().settle(id(1), &grey, Some(Duration::from_secs(300)), now);
    assert_eq!(provider.room(now).messages, 4);
}

#[test]
fn the_password_shows_in_no_debug_output() {
    let settings = settings(1, None);
    assert!(!format!("{settings:?} {:?}", settings.endpoint.auth).contains("hunter2"));
}

#[tokio::test]
async fn gathering_ends_when_half_of_the_slots_are_free_or_patience_is_over_and_keeps_no_slot() {
    let (provider, now) = provider(4, None);
    let mut tickets: Vec<_> = (0..4).map(|_| provider.admit(now).unwrap()).collect();
    provider.gather(Duration::from_millis(1)).await;
    tickets.truncate(3);
    provider.gather(Duration::from_millis(1)).await;
    assert_eq!(provider.room(now).messages, 1);
    tickets.truncate(2);
    tokio::time::timeout(Duration::from_secs(60), provider.gather(Duration::from_secs(3600))).await.unwrap();
    assert_eq!(provider.room(now).messages, 2);
}
