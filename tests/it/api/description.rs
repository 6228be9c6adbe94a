//! The three descriptions of the API say the same: the document for machines, the page for people, the code.

use std::collections::BTreeSet;

use outboxd::http::api::OPENAPI;
use outboxd::http::api::problem::Code;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/api.md");

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// Every problem that the document knows: status and code.
fn described() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let document = document();
    for methods in document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let schema = &response["content"]["application/problem+json"]["schema"];
                for code in schema["allOf"][1]["properties"]["code"]["enum"].as_array().into_iter().flatten() {
                    found.insert((status.clone(), code.as_str().unwrap().to_owned()));
                }
            }
        }
    }
    found
}

#[test]
fn every_code_is_on_the_page_and_in_the_document_with_its_status() {
    let described = described();
    for code in Code::ALL {
        let (status, name, _) = code.parts();
        let row = PAGE.lines().find(|line| line.starts_with("| ") && line.contains(&format!("`{name}`")));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table of docs/api.md"));
        // A row may be about several.
        let on_page = PAGE.lines().any(|line| {
            line.starts_with("| ")
                && line.contains(&format!("`{name}`"))
                && line.split('|').nth(1).unwrap().contains(status.as_str())
        });
        assert!(on_page, "{name} has status {status}, not what docs/api.md says: {row}");
        // A method or an address that the document does not have cannot be described in it.
        if name != "method_not_allowed" {
            assert!(
                described.contains(&(status.as_str().to_owned(), name.to_owned())),
                "{name} {status} is not in openapi.json"
            );
        }
    }
    let known: BTreeSet<_> =
        Code::ALL.iter().map(|code| (code.parts().0.as_str().to_owned(), code.parts().1.to_owned())).collect();
    assert!(described.is_subset(&known), "{:?}", described.difference(&known).collect::<Vec<_>>());
}

#[test]
fn the_fields_of_a_message_are_the_same_on_the_page_and_in_the_document() {
    let document = document();
    let fields: BTreeSet<String> =
        document["components"]["schemas"]["NewMessage"]["properties"].as_object().unwrap().keys().cloned().collect();
    let table = PAGE.split("## The body").nth(1).unwrap().split("\n## ").next().unwrap();
    let on_page: BTreeSet<String> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| {
            line.split('|').nth(1).unwrap().split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(on_page, fields);
}

#[test]
fn every_setting_that_the_page_names_exists() {
    let defaults = include_str!("../../../config/default.toml");
    let mut named = 0;
    for word in PAGE.split('`').skip(1).step_by(2) {
        if let Some(key) = word.strip_prefix("api.") {
            named += 1;
            let section = defaults.split("[api]").nth(1).unwrap().split("\n[").next().unwrap();
            assert!(
                section.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} ="))),
                "{word}"
            );
        }
    }
    assert!(named > 0);
}
