use super::rig::{POOL, Rig};

#[test]
fn commands_are_answered() {
    let mut r = Rig::new(4, |_| 0);
    let mut told = |text: &str| r.run(0, |osd, _, _| osd.told(text));
    assert_eq!(told("version").0, -22);
    assert_eq!(told("{\"prefix\":\"no such\"}").0, -22);
    let (code, _, output) = told("{\"prefix\":\"version\"}");
    assert_eq!(code, 0);
    assert!(output["version"].as_str().unwrap().starts_with("ublk-rbd"));
    let query = |pg: String| format!("{{\"prefix\":\"pg\",\"cmd\":\"query\",\"pgid\":\"{pg}\"}}");
    let (code, _, output) = told(&query(format!("{POOL}.2")));
    assert_eq!((code, &output["state"]), (0, &"active+clean".into()));
    assert_eq!(told(&query(format!("{POOL}.9"))).0, -2);
    assert_eq!(told(&query("x".to_owned())).0, -22);
}
