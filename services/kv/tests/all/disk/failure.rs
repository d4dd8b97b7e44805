//! Failed I/O: the log reports the failure, and never recovers.

use std::path::Path;
use std::process::Command;

use petrel_kv::persist::Batch;
use petrel_skip::{Need, skip};

use super::model::{LogModel, Step, checkpoint, directory, entry, open, wait};

/// Set for the process with its own small file system.
const INSIDE: &str = "PETREL_KV_TEST_SMALL_DISK";

#[test]
fn write__after_a_failure_is_never_durable() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Vote);
    model.wait();
    std::fs::remove_dir_all(dir.path()).unwrap();
    model.write(Batch { checkpoint: Some(checkpoint(5, 1)), ..Batch::default() });
    let failure = wait(&mut model.log, model.number).unwrap_err();
    assert!(failure.0.contains("checkpoint-2.new"), "{failure}");
    for step in [Step::Append { back: 0, count: 1, bytes: 10 }, Step::Empty] {
        model.take(&step);
        assert_eq!(wait(&mut model.log, model.number).unwrap_err().0, failure.0);
    }
}

#[test]
fn write__that_fails_after_its_checkpoint_leaves_what_was_there() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 2, bytes: 10 });
    model.wait();
    // The file is written before the record is made.
    let entries = vec![entry(9, 1, 10)];
    model.write(Batch { checkpoint: Some(checkpoint(5, 1)), entries, ..Batch::default() });
    wait(&mut model.log, model.number).unwrap_err();
    let content = model.content;
    drop(model.log);
    assert!(dir.path().join("checkpoint-2").exists());
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
    assert!(!dir.path().join("checkpoint-2").exists());
}

#[test]
fn write__on_a_full_disk_is_a_failure() {
    if let Some(path) = std::env::var_os(INSIDE) {
        return fill(path.as_ref());
    }
    let name = super::full_name(module_path!(), "write__on_a_full_disk_is_a_failure");
    let dir = directory();
    let unshare = |flags: &[&str], command: &str, path: &Path| {
        let script = format!("mount -t tmpfs -o size=1m small {} && {command}", path.display());
        let mut unshare = Command::new("unshare");
        unshare.args(flags).args(["--mount", "--", "sh", "-c", &script]).output()
    };
    let may = |flags: &&[&str]| {
        unshare(flags, "true", dir.path()).is_ok_and(|output| output.status.success())
    };
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let Some(flags) = ways.into_iter().find(may) else {
        return skip(Need::Mounts, "`unshare` and `mount` give no file system of a test's own");
    };
    let exe = std::env::current_exe().unwrap();
    let path = dir.path().display();
    let command = format!("{INSIDE}={path} {} --exact {name} --nocapture", exe.display());
    let output = unshare(flags, &command, dir.path()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "it ran there");
}

/// Fills a file system of 1 MiB.
fn fill(path: &Path) {
    let mut model = LogModel::begin(path, 100 << 10);
    let mut last_durable = 1;
    let failure = loop {
        model.take(&Step::Append { back: 0, count: 2, bytes: 5000 });
        match wait(&mut model.log, model.number) {
            Ok(()) => last_durable = model.content.last(),
            Err(failure) => break failure,
        }
    };
    assert!(failure.0.contains("No space left"), "{failure}");
    assert!(last_durable > 100, "{last_durable}");
    drop(model.log);
    // Makes room.
    Command::new("mount").args(["-o", "remount,size=4m"]).arg(path).status().unwrap();
    let (_, recovered) = open(path);
    let entries = recovered.unwrap().entries;
    assert!(entries.len() as u64 + 1 >= last_durable, "{} of {last_durable}", entries.len());
}
