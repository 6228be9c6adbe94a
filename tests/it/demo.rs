//! The demo, in small: it proves what it claims, and cleans up after itself.

use tempfile::TempDir;

use crate::harness::Proc;

#[tokio::test]
async fn a_small_demo_proves_both_sides_equal() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outboxd"));
    command.args(["demo", "--quiet", "--messages", "200", "--seed", "7"]);
    // Nothing may be left in the directory that it makes its own in.
    let place = TempDir::new().unwrap();
    // PostgreSQL's account has to get through to it.
    std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    command.env("TMPDIR", place.path());
    let mut demo = Proc::spawn(command, TempDir::new().unwrap());
    let status = demo.ended().await;
    let said = demo.log();
    assert!(status.success(), "{said}");
    assert!(said.contains("All 18 equations hold.") && !said.contains("FAIL"), "{said}");
    let summary = said.lines().find(|line| line.starts_with("summary: seed=7 ")).unwrap();
    assert!(summary.contains(" duplicates=0 lost=0 stuck=0 "), "{summary}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "something is left behind");
}
