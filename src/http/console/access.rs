//! Who is asking, what they may do, and that a form was sent from a page of ours.
//!
//! A session is random, lives in the database as a hash, and is asked for at every request: what is ended is ended at once.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use uuid::Uuid;

use super::Console;
use super::page::Failure;
use crate::domain::operator::Role;
use crate::store::operators::{self, SignedIn};

/// The header of a request that a page makes by itself.
const FOLLOWS: &str = "x-outboxd-follows";
/// Whether a form comes from another site: browsers say so (Fetch Metadata), older ones at least from where.
pub(super) fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (text("sec-fetch-site"), text("origin"), text("host")) {
        (Some(site), _, _) => site != "same-origin" && site != "none",
        (None, Some(origin), Some(host)) => origin.split_once("://").is_none_or(|(_, authority)| authority != host),
        (None, _, _) => false,
    }
}
/// Who is asking.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) name: String,
    pub(super) role: Role,
    /// Goes with every form.
    pub(super) csrf: String,
}

impl Session {
    pub(super) fn may(&self, role: Role) -> Result<(), Failure> {
        if self.role >= role {
            return Ok(());
        }
        Err(Failure::forbidden(&format!("This needs the role {role}; yours is {}.", self.role)))
    }
}
impl Console {
    fn cookie_name(&self) -> &'static str {
        // With the prefix, browsers take it from this host alone, over TLS alone (RFC 6265bis, 4.1.3.2).
        if self.settings.secure_cookie { "__Host-outboxd" } else { "outboxd" }
    }

    pub(super) fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.settings.secure_cookie { "; Secure" } else { "" };
        let name = self.cookie_name();
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }

    pub(super) fn id(&self, headers: &HeaderMap) -> Option<String> {
        self.cookie_of(headers, self.cookie_name())
    }

    pub(super) fn cookie_of(&self, headers: &HeaderMap, name: &str) -> Option<String> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(given, _)| *given == name).map(|(_, value)| value.to_owned())
    }

    /// Opens a session; the cookie that holds it.
    pub(super) async fn open_session(
        &self,
        conn: &mut sqlx::PgConnection,
        operator: Uuid,
    ) -> Result<HeaderValue, Failure> {
        let mut random = [0; 32];
        let none = || Failure::bad("The system has no random numbers.");
        SystemRandom::new().fill(&mut random).map_err(|_| none())?;
        let id = URL_SAFE_NO_PAD.encode(random);
        if !operators::open_session(conn, &hashed(&id), operator, self.settings.session).await? {
            return Err(Failure::forbidden("You may not sign in any more."));
        }
        HeaderValue::try_from(self.cookie(&id, self.settings.session.as_secs())).map_err(|_| none())
    }

    /// Who is signed in; nobody is led to the sign-in. A page that only follows is no use of the session.
    pub(super) async fn enter(&self, headers: &HeaderMap, here: &str) -> Result<Session, Failure> {
        self.asks(headers, here, !headers.contains_key(FOLLOWS)).await
    }

    /// Who is signed in, without using the session.
    pub(super) async fn glance(&self, headers: &HeaderMap) -> Result<Session, Failure> {
        self.asks(headers, "/", false).await
    }

    async fn asks(&self, headers: &HeaderMap, here: &str, uses: bool) -> Result<Session, Failure> {
        let Some(id) = self.id(headers) else { return Err(Failure::SignIn(here.to_owned())) };
        let mut tx = self.desk.deciding().await?;
        let who = operators::session(&mut tx, &hashed(&id), self.settings.idle, uses).await?;
        tx.commit().await?;
        let Some(SignedIn { name, role }) = who else { return Err(Failure::SignIn(here.to_owned())) };
        Ok(Session { name, role, csrf: csrf(&id) })
    }

    /// Who sent a form, from a page of ours.
    pub(super) async fn enter_by_form(&self, headers: &HeaderMap, fields: &Fields) -> Result<Session, Failure> {
        let session = self.enter(headers, "/").await?;
        // The token proves it where browsers say nothing.
        if is_from_elsewhere(headers) || fields.get("csrf") != session.csrf {
            return Err(Failure::forbidden(
                "The form is not from a page of this console, or of an earlier session. Load the page again.",
            ));
        }
        Ok(session)
    }
}

pub(super) fn hashed(id: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, id.as_bytes()).as_ref());
    hash
}

/// What goes with every form of a session: nobody makes it who does not know the session, and it does not tell it.
fn csrf(id: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, format!("csrf {id}").as_bytes()))
}

/// The fields of a form, or of an address.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(pub(super) Vec<(String, String)>);

impl Fields {
    /// The field's value without white space around it; empty where it is not there.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.trim()).unwrap_or_default()
    }

    /// The same, `None` where it is empty.
    pub(super) fn some(&self, name: &str) -> Option<String> {
        Some(self.get(name)).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// All values of a field.
    pub(super) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A reason, which every decision needs.
    pub(super) fn reason(&self) -> Result<String, Failure> {
        let reason = self.get("reason");
        if reason.is_empty() || reason.len() > 2_000 || reason.contains('\0') {
            return Err(Failure::bad("Say why, in up to 2,000 octets: it stays on record."));
        }
        Ok(reason.to_owned())
    }
}
/// The path that somebody wanted to see, if it is of this console; else the first page.
pub(super) fn ours(next: &str) -> &str {
    let is_ours =
        next.starts_with('/') && !next.starts_with("//") && !next.contains('\\') && !next.contains(char::is_control);
    if is_ours { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_from_elsewhere_if_the_browser_says_so_or_names_another_origin() {
        for (site, origin, elsewhere) in [
            (Some("same-origin"), Some("https://other"), false),
            (Some("none"), None, false),
            (Some("cross-site"), Some("https://console"), true),
            (Some("same-site"), None, true),
            (None, Some("https://console"), false),
            (None, Some("https://console.other"), true),
            (None, Some("null"), true),
            (None, None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("console"));
            site.map(|site| headers.insert("sec-fetch-site", HeaderValue::from_static(site)));
            origin.map(|origin| headers.insert("origin", HeaderValue::from_static(origin)));
            assert_eq!(is_from_elsewhere(&headers), elsewhere, "{site:?} {origin:?}");
        }
    }

    #[test]
    fn only_a_path_of_ours_is_led_to() {
        for next in ["/audit", "/search?q=a%2Fb"] {
            assert_eq!(ours(next), next);
        }
        for next in ["", "//evil.example", "https://evil.example", "/\\evil", "/\t/evil.example", "/\u{1}", "audit"] {
            assert_eq!(ours(next), "/", "{next:?}");
        }
    }
}
