//! The section `[console]`, and `[console.oidc]` in it.

use secrecy::SecretString;

use super::Console;
use super::reader::{self, Notes, Section};
use crate::client::oidc::{self, Claim, is_usable};

pub(super) fn read(mut section: Section, notes: &mut Notes) -> Console {
    let oidc = read_oidc(section.child("oidc", notes), notes);
    let console = Console {
        listen: section.value("listen", notes, |kind| match reader::text(kind)?.as_str() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| "an address such as \"127.0.0.1:8090\", or empty".to_owned()),
        }),
        connections: section.value("connections", notes, reader::count),
        session: section.value("session", notes, reader::some_time),
        idle: section.value("idle", notes, reader::some_time),
        secure_cookie: section.value("secure_cookie", notes, reader::switch),
        oidc,
    };
    section.end(notes);
    if !console.secure_cookie && console.listen.is_some_and(|listen| !listen.ip().is_loopback()) {
        notes.problem(
            "console.secure_cookie = false with console.listen on an address that others reach would show sessions on the way; set \
             it to true behind a proxy that ends TLS, or listen on 127.0.0.1",
        );
    }
    console
}

fn read_oidc(mut section: Section, notes: &mut Notes) -> Option<oidc::Settings> {
    let issuer = section.value("issuer", notes, reader::text);
    let client_id = section.value("client_id", notes, reader::text);
    let client_secret = section.secret("client_secret", notes).filter(|secret| !secret.is_empty());
    let redirect_url = section.value("redirect_url", notes, reader::text);
    let claim = section.optional("claim", notes, |kind| {
        let text = reader::text(kind)?;
        let known = Claim::ALL.into_iter().find(|claim| claim.as_str() == text);
        known.ok_or_else(|| "\"email\", \"preferred_username\" or \"sub\"".to_owned())
    });
    section.end(notes);
    if issuer.is_empty() {
        if !client_id.is_empty() || !redirect_url.is_empty() {
            notes.problem("console.oidc.issuer is missing: set it to the identity provider's issuer identifier, or empty the others");
        }
        return None;
    }
    for (key, url) in [("issuer", &issuer), ("redirect_url", &redirect_url)] {
        if !is_usable(url) {
            notes.problem(format!(
                "console.oidc.{key} must be a URL that begins with https:// (http:// on this machine only)"
            ));
        }
    }
    if !redirect_url.ends_with("/sign-in/oidc/return") {
        notes.problem("console.oidc.redirect_url must end with /sign-in/oidc/return: the console answers there");
    }
    if client_id.is_empty() {
        notes.problem("console.oidc.client_id is missing: set it to what the console is registered as");
    }
    Some(oidc::Settings {
        issuer,
        client_id,
        client_secret: client_secret.map(SecretString::from),
        redirect_url,
        claim: claim?,
    })
}
