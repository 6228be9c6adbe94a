//! How a notification's identity goes on the wire to one provider: the headers that carry it, and the address that bounces come to.

use super::reader::{self, Notes, Section};
use crate::mail::compose::Identity;

/// Reads `bounce_address` and `[provider.NAME.headers]`; `None` if it cannot be used, and then `notes` says why. `dedup_header` is
/// the header that the provider deduplicates on.
pub(super) fn read(
    section: &mut Section,
    domain: &str,
    dedup_header: Option<&str>,
    notes: &mut Notes,
) -> Option<Identity> {
    let bounce_address = section.optional("bounce_address", notes, reader::text).filter(|address| !address.is_empty());
    let mut headers = section.child("headers", notes);
    let headers: Vec<(String, String)> = headers
        .names()
        .into_iter()
        .filter_map(|name| {
            let value = headers.named(&name, notes, reader::text)?;
            Some((name, value))
        })
        .collect();
    let identity = match Identity::new(domain, dedup_header) {
        Ok(identity) => identity,
        Err(invalid) => {
            // What is wrong with a domain that is missing was said where it was read.
            if !domain.is_empty() {
                notes.problem(format!("{} or mail.message_id_domain: {invalid}", section.name("dedup.header")));
            }
            return None;
        }
    };
    let identity = headers.into_iter().try_fold(identity, |identity, (name, value)| {
        identity.with_header(&name, &value).map_err(|invalid| (section.name("headers"), invalid))
    });
    let identity = identity.and_then(|identity| match &bounce_address {
        Some(template) => {
            identity.with_bounce_address(template).map_err(|invalid| (section.name("bounce_address"), invalid))
        }
        None => Ok(identity),
    });
    identity.map_err(|(key, invalid)| notes.problem(format!("{key}: {invalid}; change it or leave it out"))).ok()
}
