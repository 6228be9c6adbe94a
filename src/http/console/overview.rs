//! The first page: what needs a person, then how much is where, then how it went.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use maud::{Markup, html};

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, at, page, query, words};
use crate::store::doctor::{self, Facts, Pause};
use crate::store::overview::Unfinished;
use crate::store::pulse::{self, Heard, Hour, Latency, Stretch, Trouble};

/// What a chart can be over: its name, its title, how many bars it has, and of how many minutes each is.
const SPANS: [(&str, &str, i32, i32); 2] = [("hour", "The last hour", 60, 1), ("day", "The last day", 96, 15)];

/// A backlog older than this, in seconds, needs a look.
const READY_MAX_SECONDS: f64 = 60.0;

/// A worker that has not been heard of for so long, in seconds, is silent: it says something every ten.
const SILENT_SECONDS: f64 = 30.0;

/// Counts that are older are told to be.
const COUNTED_LATELY: Duration = Duration::from_secs(3);

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let session = console.enter(&headers, "/").await?;
    let fields = Fields(fields);
    let span = SPANS.into_iter().find(|(name, ..)| *name == fields.get("over")).unwrap_or(SPANS[0]);
    let counted = console.counted().await?;
    let (facts, unfinished) = (&counted.facts, &counted.unfinished);
    let stretches = console.chart(span.2, span.3).await?;
    let mut tx = console.desk.reading().await?;
    let providers = Providers {
        hours: pulse::last_hour(&mut tx).await?,
        latencies: pulse::latencies(&mut tx).await?,
        heard: pulse::heard(&mut tx).await?,
        troubles: pulse::troubles(&mut tx).await?,
    };
    let pauses = doctor::pauses(&mut tx).await?;
    drop(tx);
    let body = html! {
        h1 { "Overview" }
        (needs_a_person(&session, facts, &pauses, &providers.heard))
        h2 { "Now" }
        (now(unfinished, facts))
        @if counted.age() > COUNTED_LATELY { p.quiet { "Counted " (duration(counted.age().as_secs_f64())) " ago." } }
        h2 { (span.1) }
        (chart(&stretches, span))
        h2 { "Providers" }
        (table(&session, &providers))
    };
    Ok(page(&session, "/", "Overview", &body))
}

/// What is known of the providers.
struct Providers {
    hours: Vec<Hour>,
    latencies: Vec<Latency>,
    heard: Vec<Heard>,
    troubles: Vec<Trouble>,
}

fn needs_a_person(session: &Session, facts: &Facts, pauses: &[Pause], heard: &[Heard]) -> Markup {
    let waits = facts.oldest_ready_seconds.filter(|seconds| *seconds > READY_MAX_SECONDS);
    let held_back: BTreeSet<&str> = heard
        .iter()
        .filter(|one| !is_silent(one) && one.breaker != "closed")
        .map(|one| one.provider.as_str())
        .collect();
    let silent: BTreeSet<&str> = heard.iter().filter(|one| is_silent(one)).map(|one| one.worker.as_str()).collect();
    let calm = facts.unresolved == 0
        && facts.contradictions == 0
        && facts.closing_within_an_hour == 0
        && facts.leases_overdue == 0
        && waits.is_none()
        && pauses.is_empty()
        && held_back.is_empty()
        && silent.is_empty();
    html! {
        section aria-label="What needs a person" {
            @if calm { p.card.calm { "Nothing needs a person." } }
            div.cards {
                @if facts.unresolved > 0 {
                    a.card.attention href="/uncertain?state=unresolved" { strong { (facts.unresolved) } span { "unresolved: only a person can settle them" } }
                }
                @if facts.closing_within_an_hour > 0 {
                    a.card.attention href="/uncertain" { strong { (facts.closing_within_an_hour) } span { "recovery windows end within an hour" } }
                }
                @if facts.contradictions > 0 {
                    a.card.attention href="/search?contradiction=yes" { strong { (facts.contradictions) } span { "have evidence against what is on record" } }
                }
                @if facts.leases_overdue > 0 {
                    a.card.attention href="/search?state=claimed" { strong { (facts.leases_overdue) } span { "leases ran out: does a worker run?" } }
                }
                @if let Some(seconds) = waits {
                    a.card.attention href="/search?state=pending" { strong { (duration(seconds)) } span { "the oldest ready one waits" } }
                }
                @for provider in held_back {
                    a.card.attention href="#providers" { strong { (provider) } span { "is held back by a breaker" } }
                }
                @for worker in silent {
                    a.card.attention href="#providers" { strong { "silent" } span { "worker " (worker) ": its leases tell what it held" } }
                }
                @for pause in pauses {
                    a.card.attention href="/pauses" { strong { "paused" } span { (pause.kind) " " (pause.name) ": " (words(session, &pause.reason)) } }
                }
            }
        }
    }
}

fn now(unfinished: &Unfinished, facts: &Facts) -> Markup {
    let card = |count: i64, what: &str, link: &str| html! { a.card href=(link) { strong { (count) } span { (what) } } };
    html! {
        div.cards {
            (card(unfinished.pending, "pending", "/search?state=pending"))
            (card(unfinished.leased, "with a worker", "/search?state=transmitting"))
            (card(unfinished.uncertain, "uncertain", "/uncertain?state=uncertain"))
            (card(unfinished.unresolved, "unresolved", "/uncertain?state=unresolved"))
            (card(unfinished.failed, "failed", "/search?state=failed"))
            (card(unfinished.finished_about, "sent, bounced, cancelled (about)", "/search?state=sent"))
            div.card {
                strong { (facts.oldest_ready_seconds.map_or("–".to_owned(), duration)) }
                span { "the oldest ready one waits" }
            }
        }
    }
}

/// Stacked bars; the numbers stand in a legend as well.
fn chart(stretches: &[Stretch], (name, title, count, minutes): (&str, &str, i32, i32)) -> Markup {
    const HEIGHT: i64 = 160;
    let total = |stretch: &Stretch| stretch.sent + stretch.deferred + stretch.refused + stretch.uncertain;
    let most = stretches.iter().map(total).max().unwrap_or_default().max(1);
    let kinds = |stretch: &Stretch| {
        [
            ("sent", stretch.sent),
            ("deferred", stretch.deferred),
            ("refused", stretch.refused),
            ("uncertain", stretch.uncertain),
        ]
    };
    let step = 600.0 / f64::from(count);
    let bars = (0..).zip(stretches).map(|(at, stretch)| {
        let mut floor = HEIGHT;
        let pieces: Vec<_> = kinds(stretch)
            .into_iter()
            .map(|(kind, count)| {
                // What is there is seen, however little of the whole it is.
                let height = if count == 0 { 0 } else { (count * (HEIGHT - 10) / most).max(2) };
                floor -= height;
                (kind, floor, height)
            })
            .collect();
        (format!("{:.2}", f64::from(at) * step), stretch, pieces)
    });
    let sums = stretches.iter().fold([0; 4], |mut sums, stretch| {
        for (sum, (_, count)) in sums.iter_mut().zip(kinds(stretch)) {
            *sum += count;
        }
        sums
    });
    let each = if minutes == 1 { "a minute".to_owned() } else { format!("each {minutes} minutes") };
    let label = format!(
        "Attempts {each}. {title}: {} sent, {} deferred, {} refused, {} uncertain",
        sums[0], sums[1], sums[2], sums[3]
    );
    let width = format!("{:.2}", step * 0.8);
    html! {
        svg.chart viewBox="0 0 660 180" role="img" aria-label=(label) {
            line x1="0" y1="160" x2="600" y2="160" {}
            @for (x, stretch, pieces) in bars {
                g {
                    title { (super::page::at_exactly(stretch.at)) ": " (stretch.sent) " sent, " (stretch.deferred) " deferred, " (stretch.refused) " refused, " (stretch.uncertain) " uncertain" }
                    @for (kind, y, height) in pieces { rect class=(kind) x=(x) y=(y) width=(width) height=(height) {} }
                }
            }
            text x="0" y="176" { (if name == "day" { "a day ago" } else { "an hour ago" }) }
            text x="600" y="176" text-anchor="end" { "now" }
            text x="604" y="14" { (most) (if minutes == 1 { "/min".to_owned() } else { format!("/{minutes} min") }) }
        }
        ul.legend {
            @for (name, sum) in ["sent", "deferred", "refused", "uncertain"].iter().zip(sums) { li class=(name) { (sum) " " (name) } }
            @for (other, title, ..) in SPANS { @if other != name { li { a href={ "/?over=" (other) } { (title) } } } }
        }
        p.quiet { "As the workers tell it, every ten seconds; one that is killed takes its last ten seconds with it. Each notification's own story is complete." }
    }
}

fn is_silent(heard: &Heard) -> bool {
    heard.seconds_ago > SILENT_SECONDS
}

/// What one worker's breaker does, in words.
fn breaker(heard: &Heard) -> String {
    let left = heard.breaker_seconds.filter(|left| *left > 0.0);
    match (heard.breaker.as_str(), left) {
        _ if is_silent(heard) => format!("not heard of for {}", duration(heard.seconds_ago)),
        ("open", Some(left)) => format!("open, a probe in {}", duration(left)),
        ("open", None) => "open, the next message probes".to_owned(),
        ("asked_to_wait", Some(left)) => format!("asked to wait {}", duration(left)),
        ("probing", _) => "open, a probe is under way".to_owned(),
        _ => "closed".to_owned(),
    }
}

fn table(session: &Session, providers: &Providers) -> Markup {
    let names: BTreeSet<&str> = providers
        .hours
        .iter()
        .map(|hour| hour.provider.as_str())
        .chain(providers.heard.iter().map(|heard| heard.provider.as_str()))
        .collect();
    let ms = |ms: Option<u32>| ms.map_or("–".to_owned(), |ms| format!("{ms} ms"));
    html! {
        @if names.is_empty() { p.quiet { "No worker was heard of in the last hour." } } @else {
            div.wide #providers { table {
                caption { "Outcomes of the last hour; times of the last ten minutes, from the claim to the acceptance" }
                thead { tr {
                    th { "provider" } th { "breaker, by worker" } th.number { "sent a minute" } th.number { "half within" } th.number { "99 % within" } th.number { "running" }
                    th.number { "sent" } th.number { "deferred" } th.number { "refused" } th.number { "not sent" } th.number { "uncertain" }
                    th { "last trouble" }
                } }
                tbody { @for name in names {
                    @let none = Hour::default();
                    @let hour = providers.hours.iter().find(|hour| hour.provider == name).unwrap_or(&none);
                    @let latency = providers.latencies.iter().find(|latency| latency.provider == name);
                    @let heard: Vec<&Heard> = providers.heard.iter().filter(|heard| heard.provider == name).collect();
                    @let live = heard.iter().filter(|heard| !is_silent(heard));
                    @let running: i32 = live.clone().map(|heard| heard.under_way).sum();
                    @let room: i32 = live.map(|heard| heard.connections).sum();
                    tr {
                        td { a href={ "/search?" (query(&[("provider", name)])) } { (name) } }
                        td { (breakers(&heard)) }
                        td.number { (hour.last_minute) }
                        td.number { (ms(latency.and_then(|latency| latency.p50_ms))) }
                        td.number { (ms(latency.and_then(|latency| latency.p99_ms))) }
                        td.number { (running) " of " (room) }
                        td.number { (hour.sent) } td.number { (hour.deferred) } td.number { (hour.refused) }
                        td.number { (hour.not_sent) } td.number { (hour.uncertain) }
                        td { @if let Some(trouble) = providers.troubles.iter().find(|trouble| trouble.provider == name) {
                            a href={ "/notifications/" (trouble.notification_id) } { (at(trouble.ended_at)) }
                            " " (trouble.phase.as_deref().unwrap_or_default()) ": "
                            @if let Some(code) = trouble.reply_code { (code) " " }
                            (words(session, trouble.told.as_deref().unwrap_or_default()))
                        } }
                    }
                } }
            } }
        }
    }
}

/// All workers' breakers of one provider: one line where they agree.
fn breakers(heard: &[&Heard]) -> Markup {
    let closed = heard.iter().filter(|heard| breaker(heard) == "closed").count();
    html! {
        @if heard.is_empty() { span.quiet { "no worker" } }
        @if closed > 0 { div { span.state.sent { "closed" } @if heard.len() > 1 { " at " (closed) " of " (heard.len()) } } }
        @for heard in heard.iter().filter(|heard| breaker(heard) != "closed") {
            div { span.state.failed { (breaker(heard)) } " " span.quiet { (heard.worker) } }
        }
    }
}

/// In the unit that says enough.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}
