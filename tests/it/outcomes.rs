//! What every way of failing proves, as the whole worker records it: the design's failure table, a test a row and phase.
//!
//! Each test looks at the attempt and the state in the database and at what the server accepted. `docs/reliability.md`
//! has the table; a test here compares its names with those of the tests.

mod crash;
mod ending;
mod offering;
mod opening;
mod recovery;
mod sending;

/// The names of a file's tests.
fn tests_of(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].trim() == "#[tokio::test]")
        .filter_map(|pair| pair[1].trim().strip_prefix("async fn ")?.split('(').next())
        .collect()
}

#[test]
fn the_table_of_outcomes_names_every_one_of_these_tests_and_no_other() {
    let page = include_str!("../../docs/reliability.md");
    let tested: Vec<&str> = [
        include_str!("outcomes/crash.rs"),
        include_str!("outcomes/ending.rs"),
        include_str!("outcomes/offering.rs"),
        include_str!("outcomes/opening.rs"),
        include_str!("outcomes/recovery.rs"),
        include_str!("outcomes/sending.rs"),
        include_str!("providers.rs"),
        include_str!("providers/breaker.rs"),
        include_str!("providers/limits.rs"),
    ]
    .into_iter()
    .flat_map(tests_of)
    .collect();
    let (_, section) = page.split_once("## Outcomes as tested").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    // The last column of every row of the section's tables.
    let named: Vec<&str> = section
        .lines()
        .filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|')?.rsplit('|').next())
        .flat_map(|column| column.split('`').skip(1).step_by(2))
        .collect();
    let missing: Vec<_> = tested.iter().filter(|test| !named.contains(test)).collect();
    let invented: Vec<_> = named.iter().filter(|name| !tested.contains(name)).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "missing in the page: {missing:#?}; no such test: {invented:#?}"
    );
}
