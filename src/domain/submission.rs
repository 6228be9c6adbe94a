//! The body of `POST /v1/messages`, parsed once: a [`Submission`] is in canonical form and can be stored.
//!
//! It knows neither account nor key: those come from the token and the header, never from the body. No refusal may
//! repeat what the body says.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::address::EmailAddress;
use super::content::{self, Content, Invalid, RawContent};
use super::ids::NotificationId;

/// Recipients of one message: a transaction stays short. Longer lists are several messages.
pub const RECIPIENTS_MAX_COUNT: usize = 50;

/// Octets of content over all recipients (64 MiB): each notification holds its own copy, in one transaction.
pub const TOTAL_MAX_OCTETS: usize = 64 * 1024 * 1024;

/// Stands in for a recipient where a message has none, so that the same rules check it.
const NOBODY: &str = "nobody@example.invalid";

/// The body as it comes. `null` is as good as absent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    sender: String,
    sender_name: Option<String>,
    recipients: Vec<Recipient>,
    subject: String,
    body_text: Option<String>,
    body_html: Option<String>,
    reply_to: Option<String>,
    headers: Option<Vec<(String, String)>>,
    attachments: Option<Vec<File>>,
    list_unsubscribe: Option<String>,
    list_unsubscribe_post: Option<bool>,
    route: Option<String>,
    priority: Option<u8>,
    not_before: Option<String>,
    expires_at: Option<String>,
}

/// In the order of RFC 8785, 3.2.3, as all that is serialised here.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipient {
    address: String,
    name: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    content: String,
    content_type: String,
    filename: String,
}

/// All fields, sorted by name: serialised as it stands here, this is the canonical form (RFC 8785).
#[derive(Serialize)]
struct Canonical {
    attachments: Vec<File>,
    body_html: Option<String>,
    body_text: Option<String>,
    expires_at: Option<String>,
    headers: Vec<(String, String)>,
    list_unsubscribe: Option<String>,
    list_unsubscribe_post: bool,
    not_before: Option<String>,
    priority: u8,
    recipients: Vec<Recipient>,
    reply_to: Option<String>,
    route: String,
    sender: String,
    sender_name: Option<String>,
    subject: String,
}

/// Why a body is not a submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyProblem {
    /// It is not JSON at all.
    #[error("is not one JSON object (line {line}, column {column}); send one")]
    Malformed {
        /// From 1.
        line: usize,
        /// From 0.
        column: usize,
    },
    /// A field is missing, unknown, of another type or twice there.
    #[error(transparent)]
    Shape(Invalid),
}

/// A body of the right shape, with its canonical form.
#[derive(Clone)]
pub struct Submission {
    canonical: String,
    route: String,
}

impl Submission {
    /// Reads a body's shape. Whether its content is valid says [`Self::check`]; the canonical form needs no more than this,
    /// so that what was once accepted is known again even when a rule has changed since.
    ///
    /// # Errors
    /// When it is not JSON, or not of these fields.
    pub fn read(body: &[u8]) -> Result<Self, BodyProblem> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed: Body = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let field = error.path().to_string();
            of_json(error.inner(), &field)
        })?;
        json.end().map_err(|error| of_json(&error, ""))?;
        let canonical = Canonical::of(parsed).map_err(BodyProblem::Shape)?;
        let route = canonical.route.clone();
        match serde_json::to_string(&canonical) {
            Ok(canonical) => Ok(Self { canonical, route }),
            Err(error) => Err(of_json(&error, "")),
        }
    }

    /// Checks every field by the rules for a notification's content, and the route against those that `routes` knows.
    ///
    /// # Errors
    /// The first field that is wrong, and what to do.
    pub fn check(&self, routes: impl Fn(&str) -> bool) -> Result<(), Invalid> {
        let raw: serde_json::Value = serde_json::from_str(&self.canonical)
            .map_err(|_| Invalid::new("body", "is nested too deeply; send the documented fields only"))?;
        if let Some(field) = with_nul(&raw, String::new()) {
            return Err(Invalid::new(field, "has a NUL character; remove it"));
        }
        let recipients = raw["recipients"].as_array().map(Vec::as_slice).unwrap_or_default();
        check_recipients(recipients)?;
        if self.canonical.len().saturating_mul(recipients.len().max(1)) > TOTAL_MAX_OCTETS {
            let problem = format!(
                "come to more than {TOTAL_MAX_OCTETS} octets with this content; send several messages, or a link instead"
            );
            return Err(Invalid::new("recipients", problem));
        }
        let text = |key: &str| raw[key].as_str().map(str::to_owned);
        // Whoever it goes to, the rest is the same.
        Content::parse(RawContent {
            id: NotificationId(Uuid::nil()),
            created_at: OffsetDateTime::UNIX_EPOCH,
            sender: text("sender").unwrap_or_default(),
            sender_name: text("sender_name"),
            recipient: NOBODY.to_owned(),
            recipient_name: None,
            reply_to: text("reply_to"),
            subject: text("subject").unwrap_or_default(),
            body_text: text("body_text"),
            body_html: text("body_html"),
            headers: raw["headers"].clone(),
            attachments: raw["attachments"].clone(),
            list_unsubscribe: text("list_unsubscribe"),
            list_unsubscribe_post: raw["list_unsubscribe_post"] == json!(true),
        })?;
        if raw["priority"].as_u64().is_some_and(|priority| priority > 9) {
            return Err(Invalid::new("priority", "is not between 0 (first) and 9 (last); leave it out for 5"));
        }
        if !(1..=100).contains(&self.route.len()) || !routes(&self.route) {
            return Err(Invalid::new("route", "is not a configured route; leave it out for the default route"));
        }
        Ok(())
    }

    /// The canonical form (RFC 8785) of all fields, defaults filled in.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }
}

impl Canonical {
    fn of(body: Body) -> Result<Self, Invalid> {
        Ok(Self {
            attachments: body.attachments.unwrap_or_default().into_iter().map(File::with_plain_base64).collect(),
            body_html: body.body_html,
            body_text: body.body_text,
            expires_at: body.expires_at.map(|time| instant("expires_at", &time)).transpose()?,
            headers: body.headers.unwrap_or_default(),
            list_unsubscribe: body.list_unsubscribe,
            list_unsubscribe_post: body.list_unsubscribe_post.unwrap_or(false),
            not_before: body.not_before.map(|time| instant("not_before", &time)).transpose()?,
            priority: body.priority.unwrap_or(5),
            recipients: body.recipients,
            reply_to: body.reply_to,
            route: body.route.unwrap_or_else(|| "default".to_owned()),
            sender: body.sender,
            sender_name: body.sender_name,
            subject: body.subject,
        })
    }
}

impl File {
    /// The same bytes in base64 without line breaks and with padding. What is not base64 stays, for the check to refuse.
    fn with_plain_base64(mut self) -> Self {
        if let Some(bytes) = super::attachment::decode(&self.content) {
            self.content = STANDARD.encode(bytes);
        }
        self
    }
}

/// A time in UTC to the microsecond, which is what PostgreSQL keeps.
fn instant(field: &'static str, text: &str) -> Result<String, Invalid> {
    let wrong = || {
        Invalid::new(
            field,
            "is not a time of the years 1970 to 9999 as in RFC 3339; give one such as `2030-01-31T09:00:00Z`",
        )
    };
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| wrong())?;
    let time =
        time.checked_to_offset(UtcOffset::UTC).filter(|utc| (1970..=9999).contains(&utc.year())).ok_or_else(wrong)?;
    // Six digits cut off what follows.
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    time.format(&format).map_err(|_| wrong())
}

fn check_recipients(recipients: &[serde_json::Value]) -> Result<(), Invalid> {
    if recipients.len() > RECIPIENTS_MAX_COUNT {
        let problem = format!("has more than {RECIPIENTS_MAX_COUNT} entries; send several messages");
        return Err(Invalid::new("recipients", problem));
    }
    let mut seen = HashMap::new();
    for (index, recipient) in recipients.iter().enumerate() {
        let field = format!("recipients[{index}].address");
        let address = recipient["address"].as_str().unwrap_or_default().parse::<EmailAddress>();
        let address = address.map_err(|problem| Invalid::new(field.clone(), problem.to_string()))?;
        // Domains know no case (RFC 5321, 2.4); what stands before the `@` is the server's own affair.
        let (local, domain) = address.wire().rsplit_once('@').unwrap_or_default();
        if let Some(first) = seen.insert(format!("{local}@{}", domain.to_ascii_lowercase()), index) {
            return Err(Invalid::new(
                field,
                format!("is the same as recipients[{first}].address; give each address once"),
            ));
        }
        content::check_name(format!("recipients[{index}].name"), recipient["name"].as_str().unwrap_or_default())?;
    }
    Ok(())
}

/// The first text with a NUL, by the name of its field: PostgreSQL cannot store one.
fn with_nul(value: &serde_json::Value, name: String) -> Option<String> {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0').then_some(name),
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| with_nul(item, format!("{name}[{at}]"))),
        Value::Object(fields) => fields.iter().find_map(|(field, value)| {
            with_nul(value, if name.is_empty() { field.clone() } else { format!("{name}.{field}") })
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// serde's message quotes what it found, which may be content: only its first words are told.
fn of_json(error: &serde_json::Error, field: &str) -> BodyProblem {
    use serde_json::error::Category;
    let field = if field.is_empty() || field == "." || field == "?" { "body".to_owned() } else { field.to_owned() };
    match error.classify() {
        Category::Io | Category::Syntax | Category::Eof => {
            BodyProblem::Malformed { line: error.line(), column: error.column() }
        }
        Category::Data => {
            let said = error.to_string();
            let quoted = |start: &str| said.strip_prefix(start).and_then(|rest| rest.split('`').next());
            let problem = |field: &str, problem: &str| BodyProblem::Shape(Invalid::new(field.to_owned(), problem));
            let within = |name: &str| match field.as_str() {
                "body" => name.to_owned(),
                outer if outer.ends_with(name) => outer.to_owned(),
                outer => format!("{outer}.{name}"),
            };
            if let Some(name) = quoted("missing field `") {
                problem(&within(name), "is missing; give it")
            } else if let Some(name) = quoted("duplicate field `") {
                problem(&within(name), "is there twice; give it once")
            } else if said.starts_with("unknown field") {
                problem(&field, "is not a field of this object; leave it out (docs/api.md lists them)")
            } else {
                problem(&field, "is of the wrong type or out of range; see docs/api.md")
            }
        }
    }
}

#[cfg(test)]
mod tests;
