//! Who decided what, for people. Reads only: decisions are written beside what they decide.

use serde::Serialize;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// What to look for; what is `None` does not matter.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Who decided.
    pub who: Option<String>,
    /// What begins so, such as `resolve`.
    pub action: Option<String>,
    /// About this notification.
    pub notification: Option<Uuid>,
    /// About this replay.
    pub replay: Option<Uuid>,
    /// At this time or later.
    pub since: Option<OffsetDateTime>,
    /// Before this time.
    pub until: Option<OffsetDateTime>,
    /// Only those below this number: the last of the page before.
    pub below: Option<i64>,
}

/// A decision on record.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.decision, explained there")]
pub struct Decision {
    pub id: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub decided_at: OffsetDateTime,
    pub decided_by: String,
    pub action: String,
    pub reason: String,
    pub notification_id: Option<Uuid>,
    pub replay_id: Option<Uuid>,
    pub subject: Option<String>,
    pub before: Option<serde_json::Value>,
    pub after: Option<serde_json::Value>,
}

/// A page of decisions, the newest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn decisions(conn: &mut PgConnection, filter: &Filter, limit: u32) -> Result<Vec<Decision>, sqlx::Error> {
    sqlx::query_as!(
        Decision,
        r#"
        select id, decided_at, decided_by, action, reason, notification_id, replay_id, subject, before, after
        from outboxd.decision
        where ($1::text is null or decided_by = $1) and ($2::text is null or starts_with(action, $2))
          and ($3::uuid is null or notification_id = $3) and ($4::uuid is null or replay_id = $4)
          and ($5::timestamptz is null or decided_at >= $5) and ($6::timestamptz is null or decided_at < $6)
          and ($7::bigint is null or id < $7)
        order by id desc
        limit $8
        "#,
        filter.who,
        filter.action,
        filter.notification,
        filter.replay,
        filter.since,
        filter.until,
        filter.below,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// What is told of a decision, by its heading.
pub const COLUMNS: [&str; 8] = ["number", "when", "who", "what", "about", "before", "after", "why"];

impl Decision {
    /// What stands in each of [`COLUMNS`].
    #[must_use]
    pub fn cells(&self) -> Vec<String> {
        let about = match (self.notification_id, self.replay_id, &self.subject) {
            (Some(id), _, _) => id.to_string(),
            (None, Some(id), _) => format!("replay {id}"),
            (None, None, subject) => subject.clone().unwrap_or_default(),
        };
        let state = |snapshot: &Option<serde_json::Value>| {
            let state = snapshot.as_ref().and_then(|snapshot| snapshot["state"].as_str());
            state.unwrap_or_default().to_owned()
        };
        let when = self.decided_at.replace_nanosecond(0).unwrap_or(self.decided_at);
        vec![
            self.id.to_string(),
            when.format(&Rfc3339).unwrap_or_default(),
            self.decided_by.clone(),
            self.action.clone(),
            about,
            state(&self.before),
            state(&self.after),
            self.reason.clone(),
        ]
    }
}

/// Decisions for a spreadsheet (RFC 4180), with a heading.
#[must_use]
pub fn csv(decisions: &[Decision]) -> String {
    csv_heading() + &csv_rows(decisions)
}

/// The heading of a spreadsheet.
#[must_use]
pub fn csv_heading() -> String {
    record(COLUMNS.iter().copied())
}

/// Decisions for a spreadsheet, without a heading.
#[must_use]
pub fn csv_rows(decisions: &[Decision]) -> String {
    decisions.iter().map(|decision| record(decision.cells().iter().map(String::as_str))).collect()
}

/// A record. Every cell is quoted, so that no separator that a spreadsheet may know ends it; and one that it would take for a formula
/// is made a text.
fn record<'c>(cells: impl Iterator<Item = &'c str>) -> String {
    let cells: Vec<String> = cells
        .map(|cell| {
            let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
            format!("\"{}{}\"", if formula { "'" } else { "" }, cell.replace('"', "\"\""))
        })
        .collect();
    format!("{}\r\n", cells.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_are_no_formulas() {
        let told = record(["plain", "a \"b\", c", "=1+1", "two\nlines", "a;=1", ""].into_iter());
        assert_eq!(told, "\"plain\",\"a \"\"b\"\", c\",\"'=1+1\",\"two\nlines\",\"a;=1\",\"\"\r\n");
    }
}
