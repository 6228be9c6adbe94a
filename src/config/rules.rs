//! The rules across sections: each names the keys it is about and what to do.

use std::time::Duration;

use super::reader::Notes;
use super::{Lease, Settings};
use crate::mail::endpoint::Security;
use crate::mail::provider::ProviderSettings;

/// So many renewals must fit into a lease, so that two may fail before it is lost.
const RENEWALS_PER_LEASE_MIN: u32 = 3;

/// Receipts outlive the window of issued keys by at least this: far longer than any request that was let in at its very end.
const RECEIPT_MARGIN: Duration = Duration::from_secs(3_600);

/// `provider_names` is `None` where nothing is configured to send with.
pub(super) fn check(settings: &Settings, provider_names: Option<&[String]>, notes: &mut Notes) {
    database(settings, notes);
    api(settings, notes);
    retention(settings, notes);
    lease(settings, notes);
    retry(settings, notes);
    if let Some(names) = provider_names {
        routes(settings, names, notes);
        for (name, events) in settings.events.iter().filter(|(_, events)| !names.contains(&events.provider)) {
            notes.problem(format!(
                "events.{name}.provider: there is no provider {:?}; the providers are {}",
                events.provider,
                names.join(", ")
            ));
        }
    }
    scopes(settings, notes);
    plaintext(settings, notes);
}

fn database(settings: &Settings, notes: &mut Notes) {
    let database = &settings.database;
    not_above(
        notes,
        ("database.lock_timeout", database.lock_timeout),
        ("database.statement_timeout", database.statement_timeout),
        "a wait for a lock would never end by itself",
    );
}

fn api(settings: &Settings, notes: &mut Notes) {
    let api = &settings.api;
    let statement = ("api.statement_timeout", api.statement_timeout);
    not_above(notes, ("api.lock_timeout", api.lock_timeout), statement, "a wait for a lock would never end by itself");
    let request = ("api.request_timeout", api.request_timeout);
    not_above(notes, statement, request, "a request would end before its statement, with its outcome unconfirmed");
    if api.account_in_flight > api.in_flight {
        notes.problem(format!(
            "api.account_in_flight ({}) is more than api.in_flight ({}): it would limit nothing; lower the one or raise the other",
            api.account_in_flight, api.in_flight
        ));
    }
}

/// A key that may still be used must find its receipt, if there is one.
fn retention(settings: &Settings, notes: &mut Notes) {
    let retention = &settings.retention;
    if let Some(keys) = &settings.api.issued_keys
        && keys.window + RECEIPT_MARGIN > retention.receipts
    {
        notes.problem(format!(
            "retention.receipts ({:?}) is not longer than api.key_window ({:?}) by {RECEIPT_MARGIN:?}: an operation could be taken \
             for new after its receipt is gone; raise the one or lower the other",
            retention.receipts, keys.window
        ));
    }
    not_above(
        notes,
        ("retention.attempts", retention.attempts),
        ("retention.notifications", retention.notifications),
        "attempts go with their notification",
    );
}

fn lease(settings: &Settings, notes: &mut Notes) {
    let Lease { duration, renew_every } = settings.lease;
    let lease = ("lease.duration", duration);
    let late = "a dead worker's rows would wait longer than their lease";
    not_above(notes, ("worker.poll_interval", settings.worker.poll_interval), lease, late);
    not_above(notes, ("maintenance.every", settings.maintenance_every), lease, late);
    let Some(renew_every) = renew_every else {
        for provider in settings.providers.values().filter(|provider| duration <= provider.attempt_max()) {
            notes.problem(format!(
                "lease.renew_every = \"0s\" (no renewal) and lease.duration ({duration:?}) does not exceed an attempt at \
                 provider.{} ({:?}: its timeouts before begin and its send_deadline): set lease.renew_every, or raise \
                 lease.duration",
                provider.name,
                provider.attempt_max(),
            ));
        }
        return;
    };
    if duration < renew_every * RENEWALS_PER_LEASE_MIN {
        notes.problem(format!(
            "lease.duration ({duration:?}) is less than {RENEWALS_PER_LEASE_MIN} times lease.renew_every ({renew_every:?}): one \
             or two failed renewals would lose every lease; raise the one or lower the other"
        ));
    }
    let renewal = settings.database.statement_timeout;
    if renewal > duration.saturating_sub(renew_every) {
        notes.problem(format!(
            "database.statement_timeout ({renewal:?}) exceeds what lease.duration leaves after lease.renew_every ({:?}): one \
             slow renewal would lose every lease; lower it or raise lease.duration",
            duration.saturating_sub(renew_every),
        ));
    }
}

fn retry(settings: &Settings, notes: &mut Notes) {
    let retry = &settings.retry;
    not_above(notes, ("retry.base", retry.base), ("retry.cap", retry.cap), "the first delay would be above the bound");
    not_above(
        notes,
        ("retry.cap", retry.cap),
        ("retry.deadline", retry.deadline),
        "a notification would expire while it waits for its next try",
    );
    not_above(
        notes,
        ("retry.stated_delay_cap", retry.stated_delay_cap),
        ("retry.deadline", retry.deadline),
        "a server could put a notification off until it expires",
    );
}

fn routes(settings: &Settings, provider_names: &[String], notes: &mut Notes) {
    if !settings.routes.contains_key("default") {
        notes.problem("route.default is missing: set it to a list of providers");
    }
    for (route, providers) in &settings.routes {
        for (place, name) in providers.iter().enumerate() {
            if !provider_names.contains(name) {
                notes.problem(format!(
                    "route.{route} names {name:?}, which is no provider here; add [provider.{name}] or correct the route"
                ));
            } else if providers[..place].contains(name) {
                notes.problem(format!("route.{route} names {name:?} twice; remove one"));
            }
        }
    }
    for name in provider_names {
        if !settings.routes.values().flatten().any(|named| named == name) {
            notes.warning(format!("provider.{name} is in no route: it is never used"));
        }
    }
}

/// Providers that share a dedup scope are one to the notifications in doubt: they must keep the same contract.
fn scopes(settings: &Settings, notes: &mut Notes) {
    let scope = |provider: &ProviderSettings| provider.recovery.dedup_scope.clone();
    let all: Vec<_> = settings.providers.values().collect();
    for (place, one) in all.iter().enumerate() {
        for other in all[place + 1..].iter().filter(|other| scope(other) == scope(one)) {
            let contract = |p: &ProviderSettings| p.dedup.as_ref().map(|d| (d.header.to_ascii_lowercase(), d.window));
            if contract(one) != contract(other) {
                notes.problem(format!(
                    "provider.{a} and provider.{b} share the dedup scope {:?} but not the contract: give \
                     provider.{a}.dedup and provider.{b}.dedup the same header and window, or different scopes",
                    scope(one),
                    a = one.name,
                    b = other.name,
                ));
            }
        }
    }
}

fn plaintext(settings: &Settings, notes: &mut Notes) {
    for provider in settings.providers.values().filter(|provider| provider.endpoint.security == Security::Plaintext) {
        let address = provider.endpoint.host.parse::<std::net::IpAddr>();
        if provider.endpoint.host != "localhost" && !address.is_ok_and(|address| address.is_loopback()) {
            notes.warning(format!(
                "provider.{}.security = \"plaintext\" and its host is not this machine: messages can be read on the way",
                provider.name
            ));
        }
    }
}

fn not_above(notes: &mut Notes, (key, value): (&str, Duration), (limit, most): (&str, Duration), why: &str) {
    if value > most {
        notes.problem(format!(
            "{key} ({value:?}) is longer than {limit} ({most:?}): {why}; lower the one or raise the other"
        ));
    }
}
