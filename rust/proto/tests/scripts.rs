//! Runs the packet scripts of `tests/scripts` at the root of the repository, all of them or those
//! whose name contains the environment variable `SCRIPT`.

mod pair;
mod script;

use std::path::Path;

/// Scripts by name.
fn scripts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = paths.filter(|path| path.extension().is_some_and(|e| e == "mrs")).collect();
    found.sort();
    let name = |path: &Path| format!("tests/scripts/{}", path.file_name().expect("a name").to_string_lossy());
    found.iter().map(|path| (name(path), std::fs::read_to_string(path).expect("a script"))).collect()
}

#[test]
fn every_script_holds() {
    let wanted = std::env::var("SCRIPT").unwrap_or_default();
    let chosen: Vec<_> = scripts().into_iter().filter(|(name, _)| name.contains(&wanted)).collect();
    assert!(!chosen.is_empty(), "no script has {wanted} in its name");
    let run = |name: &str, text: &str| {
        std::panic::catch_unwind(|| script::run(name, text)).unwrap_or_else(|_| Err(format!("{name}: panics")))
    };
    let failures: Vec<String> = chosen.iter().filter_map(|(name, text)| run(name, text).err()).collect();
    assert!(failures.is_empty(), "{} of {} scripts fail\n{}", failures.len(), chosen.len(), failures.join("\n\n"));
}

#[test]
fn scripts_are_short_and_cite_what_they_show() {
    for (name, text) in scripts() {
        assert!(text.lines().count() <= 30, "{name} has {} lines", text.lines().count());
        assert!(text.starts_with("# ["), "{name} begins with the requirements that it shows");
    }
}

#[test]
fn a_word_without_meaning_is_refused_with_its_line() {
    let ok = "set ack_every=1\n0us a write id=1 len=4096\na completes id=1\n";
    assert_eq!(script::run("good", ok), Ok(()));
    for (line, word) in [
        ("0us a wrote id=1 len=1", "wrote"),
        ("0us a write id=1 len=1 sream=2", "sream"),
        ("0us a write len=1", "id"),
        ("0us c write id=1 len=1", "c is unknown"),
        ("a write id=1 len=1", "time"),
        ("lose a date packet=1", "date"),
        ("lose a data pocket=1", "pocket"),
        ("lose a request op=put", "put"),
        ("set ack_evry=1", "ack_evry"),
        ("set ack_every=0", "ack_every"),
        ("link plans=1", "plans"),
        ("counter resend == 1", "resend"),
        ("counter resent = 1", "="),
        ("a completes id=1 sucess", "sucess"),
        ("5us..6oz a > data", "6oz"),
        ("quiet now", "now"),
    ] {
        let refusal = script::run("bad", &format!("{ok}{line}\n")).expect_err(line);
        assert!(refusal.starts_with("bad:4: ") && refusal.contains(word), "{line}: {refusal}");
    }
}

#[test]
fn an_expectation_that_does_not_hold_is_named_by_its_line() {
    for line in [
        "..1us a completes id=1",
        "a completes id=1 flushed",
        "a completes id=2",
        "b receives id=1",
        "a completed 1 2",
        "never b > ack",
        "exactly 2 a > data",
        "1us..2us a > data",
        "a > data packet=1",
        "b > ack hole=0",
        "counter resent >= 1",
        "b placed at=0 len=4097",
        "b untouched at=4095 len=9",
        "b cell 0 == 1",
        "..3us quiet",
        "9us a connection in_flight > 0",
        "9us a path 0 window < start",
        "9us a write id=1 len=1 refused",
        "9us a read id=1 len=0",
    ] {
        let failure = script::run("wrong", &format!("0us a write id=1 len=4096\n{line}\n")).expect_err(line);
        assert!(failure.starts_with("wrong:2: "), "{line}: {failure}");
    }
}
