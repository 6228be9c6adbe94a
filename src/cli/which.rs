//! What to look for: the filter that `list`, `uncertain` and `replay plan` have in common.

use humantime_serde::re::humantime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::domain::outcome::{Outcome, Phase};
use crate::store::search::Filter;

/// What to look for.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// Only this account
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// Only where the last attempt was made with this provider
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Only this route
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Only this recipient's address
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// Only where the last attempt ended so
    #[arg(long, value_name = "OUTCOME", value_parser = outcome)]
    outcome: Option<Outcome>,
    /// Only where the last attempt ended there, such as rcpt or end_of_data
    #[arg(long, value_name = "PHASE", value_parser = phase)]
    phase: Option<Phase>,
    /// Only where the last attempt's reply has this code
    #[arg(long, value_name = "CODE")]
    code: Option<i16>,
    /// Only where the last attempt's reply or error has this text in it
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Only what is in its state since this time or later (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<OffsetDateTime>,
    /// Only what is in its state since before this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<OffsetDateTime>,
}

impl Which {
    /// The filter that these arguments ask for.
    pub(super) fn filter(&self) -> Filter {
        Filter {
            account: self.account.clone(),
            provider: self.provider.clone(),
            route: self.route.clone(),
            recipient: self.recipient.clone(),
            outcome: self.outcome,
            phase: self.phase,
            reply_code: self.code,
            text: self.text.clone(),
            since: self.since,
            until: self.until,
            ..Filter::default()
        }
    }
}

/// A time, or an age counted from now.
pub(super) fn moment(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(time);
    }
    let age = humantime::parse_duration(text)
        .map_err(|_| "is neither a time such as 2030-01-31T09:00:00Z nor an age such as 2h".to_owned())?;
    let age = time::Duration::try_from(age).map_err(|_| "is too long ago".to_owned())?;
    OffsetDateTime::now_utc().checked_sub(age).ok_or_else(|| "is too long ago".to_owned())
}

fn outcome(text: &str) -> Result<Outcome, String> {
    one_of(text, Outcome::ALL.into_iter().map(|outcome| (outcome.as_str(), outcome)))
}

fn phase(text: &str) -> Result<Phase, String> {
    one_of(text, Phase::ALL.into_iter().map(|phase| (phase.as_str(), phase)))
}

fn one_of<T>(text: &str, known: impl Iterator<Item = (&'static str, T)> + Clone) -> Result<T, String> {
    let names: Vec<_> = known.clone().map(|(name, _)| name).collect();
    let found = known.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| value).ok_or_else(|| format!("is none of {}", names.join(", ")))
}
