//! The first page: what needs a person, then how much is where, then how it went.

use axum::extract::State;
use axum::http::HeaderMap;
use maud::{Markup, html};

use super::Console;
use super::page::{Failure, page, query, words};
use crate::store::doctor::{self, Facts, Pause, Provider};
use crate::store::overview::{self, Latency, Minute, Unfinished};

/// Minutes in the chart.
const MINUTES: u16 = 60;

/// A backlog older than this, in seconds, needs a look.
const READY_MAX_SECONDS: f64 = 60.0;

/// The page.
pub(super) async fn show(State(console): State<Console>, headers: HeaderMap) -> Result<Markup, Failure> {
    let session = console.enter(&headers, "/").await?;
    let mut tx = console.desk.reading().await?;
    let facts = doctor::facts(&mut tx).await?;
    let unfinished = overview::unfinished(&mut tx).await?;
    let minutes = overview::minutes(&mut tx, MINUTES).await?;
    let providers = doctor::providers(&mut tx).await?;
    let latencies = overview::latencies(&mut tx).await?;
    let pauses = doctor::pauses(&mut tx).await?;
    drop(tx);
    let body = html! {
        h1 { "Overview" }
        (needs_a_person(&facts, &pauses))
        h2 { "Now" }
        (now(&unfinished, &facts))
        h2 { "The last hour" }
        (chart(&minutes))
        h2 { "Providers, the last hour" }
        (table(&providers, &latencies, |text| words(&session, text)))
    };
    Ok(page(&session, "/", "Overview", &body))
}

fn needs_a_person(facts: &Facts, pauses: &[Pause]) -> Markup {
    let waits = facts.oldest_ready_seconds.filter(|seconds| *seconds > READY_MAX_SECONDS);
    let calm = facts.unresolved == 0
        && facts.contradictions == 0
        && facts.closing_within_an_hour == 0
        && facts.leases_overdue == 0
        && waits.is_none()
        && pauses.is_empty();
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
                @for pause in pauses {
                    a.card.attention href="/pauses" { strong { "paused" } span { (pause.kind) " " (pause.name) ": " (pause.reason) } }
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

/// Stacked bars, one a minute; the numbers stand in a table as well.
fn chart(minutes: &[Minute]) -> Markup {
    const HEIGHT: i64 = 160;
    let total = |minute: &Minute| minute.sent + minute.deferred + minute.refused + minute.uncertain;
    let most = minutes.iter().map(total).max().unwrap_or_default().max(1);
    let kinds = |minute: &Minute| {
        [
            ("sent", minute.sent),
            ("deferred", minute.deferred),
            ("refused", minute.refused),
            ("uncertain", minute.uncertain),
        ]
    };
    let bars = minutes.iter().enumerate().map(|(at, minute)| {
        let mut floor = HEIGHT;
        let pieces: Vec<_> = kinds(minute)
            .into_iter()
            .map(|(kind, count)| {
                // What is there is seen, however little of the whole it is.
                let height = if count == 0 { 0 } else { (count * (HEIGHT - 10) / most).max(2) };
                floor -= height;
                (kind, floor, height)
            })
            .collect();
        (at * 10, minute, pieces)
    });
    let sums = minutes.iter().fold([0; 4], |mut sums, minute| {
        for (sum, (_, count)) in sums.iter_mut().zip(kinds(minute)) {
            *sum += count;
        }
        sums
    });
    let label = format!(
        "Attempts a minute in the last hour: {} sent, {} deferred, {} refused, {} uncertain",
        sums[0], sums[1], sums[2], sums[3]
    );
    html! {
        svg.chart viewBox="0 0 640 180" role="img" aria-label=(label) {
            line x1="0" y1="160" x2="600" y2="160" {}
            @for (x, minute, pieces) in bars {
                g {
                    title { (super::page::at_exactly(minute.at)) ": " (minute.sent) " sent, " (minute.deferred) " deferred, " (minute.refused) " refused, " (minute.uncertain) " uncertain" }
                    @for (kind, y, height) in pieces { rect class=(kind) x=(x) y=(y) width="8" height=(height) {} }
                }
            }
            text x="0" y="176" { "an hour ago" }
            text x="600" y="176" text-anchor="end" { "now" }
            text x="604" y="14" { (most) "/min" }
        }
        ul.legend {
            @for (name, sum) in ["sent", "deferred", "refused", "uncertain"].iter().zip(sums) { li class=(name) { (sum) " " (name) } }
        }
    }
}

fn table(providers: &[Provider], latencies: &[Latency], told: impl Fn(&str) -> String) -> Markup {
    let latency = |name: &str| latencies.iter().find(|latency| latency.provider == name);
    let ms = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
    html! {
        @if providers.is_empty() { p.quiet { "No attempt was made." } } @else {
            div.wide { table {
                thead { tr {
                    th { "provider" } th.number { "a minute" } th.number { "half within" } th.number { "99 % within" } th.number { "running" }
                    th.number { "sent" } th.number { "deferred" } th.number { "refused" } th.number { "not sent" } th.number { "uncertain" }
                    th { "last trouble" }
                } }
                tbody { @for provider in providers { tr {
                    td { a href={ "/search?" (query(&[("provider", &provider.name)])) } { (provider.name) } }
                    td.number { (latency(&provider.name).map_or(0, |latency| latency.last_minute)) }
                    td.number { (ms(latency(&provider.name).and_then(|latency| latency.p50_ms))) }
                    td.number { (ms(latency(&provider.name).and_then(|latency| latency.p99_ms))) }
                    td.number { (provider.running) } td.number { (provider.sent) } td.number { (provider.deferred) } td.number { (provider.refused) }
                    td.number { (provider.not_sent) } td.number { (provider.uncertain) }
                    td { (provider.last_error.as_deref().map(&told).unwrap_or_default()) }
                } } }
            } }
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
