//! The demo, in small: it proves what it claims, and cleans up after itself.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

/// It takes half a minute where nothing else runs.
const LIMIT: Duration = Duration::from_secs(240);

#[tokio::test]
async fn a_small_demo_proves_both_sides_equal_and_leaves_nothing_behind() {
    let place = TempDir::new().unwrap();
    // PostgreSQL's own account has to write there, too.
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
    command
        .args(["demo", "--quiet", "--messages", "200", "--seed", "7"])
        .env("TMPDIR", place.path())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("the demo ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("equations hold.") && !said.contains("FAIL"), "{said}");
    let summary = said.lines().find(|line| line.starts_with("summary: seed=7 ")).unwrap();
    assert!(summary.contains(" duplicates=0 lost=0 stuck=0 "), "{summary}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "something is left behind");
}
