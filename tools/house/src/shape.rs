//! The shape of a crate's code: lines, and circles of imports. Test code does not count.

use std::path::{Path, PathBuf};

use crate::imports::Imports;
use crate::test_code::{TestModules, test_lines};
use crate::{Failure, source};

/// The figures of a crate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Lines, those of tests left out.
    pub lines: usize,
    /// Circles of imports among files, except between parents and children.
    pub circles: Vec<Vec<PathBuf>>,
    /// Circles of imports among the modules directly below the crate's root, each with all its files.
    pub room_circles: Vec<Vec<String>>,
}

/// Measures the sources of a crate, in the folder `src`.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn of_crate(folder: &Path) -> Result<Shape, Failure> {
    let root = folder.join("src");
    let mut parsed = Vec::new();
    for path in source::files(&root, &["rs"])? {
        let text = source::read(&path)?;
        let file = source::parse(&path, &text)?;
        parsed.push((path.strip_prefix(&root).unwrap_or(&path).to_owned(), text, file));
    }
    let tests = TestModules::of(parsed.iter().map(|(path, _, file)| (&**path, file)));
    let mut lines = 0;
    let mut imports = Imports::default();
    for (path, text, file) in &parsed {
        if !tests.contain(path) {
            lines += text.lines().count() - test_lines(file).len();
            imports.add(path, file);
        }
    }
    Ok(Shape { lines, circles: imports.circles(), room_circles: imports.circles_of_rooms() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures a crate of these files.
    fn shape_of(test: &str, files: &[(&str, &str)]) -> Shape {
        let name = format!("petrel-shape-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for (name, text) in files {
            let path = folder.join("src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let shape = of_crate(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        shape
    }

    #[test]
    fn of_crate__leaves_tests_out() {
        let lib = (
            "lib.rs",
            "mod slot;\nmod session;\n#[cfg(test)]\nmod scripts;\npub struct Core;\n#[cfg(test)]\nmod tests {\n    use crate::slot::Slot;\n}\n",
        );
        let slot = (
            "slot.rs",
            "use crate::session::Session;\nimpl crate::Core {}\npub struct Slot(Session);\n",
        );
        let session = ("session/mod.rs", "mod table;\npub use table::Session;\n");
        let table =
            ("session/table.rs", "use crate::slot::Slot;\npub struct Session(Box<Slot>);\n");
        let scripts = ("scripts.rs", "use crate::slot::Slot;\n");
        let shape = shape_of("tests", &[lib, slot, session, table, scripts]);
        assert_eq!(shape.lines, 3 + 3 + 2 + 2);
        assert_eq!(shape.circles, [[PathBuf::from("session/table.rs"), PathBuf::from("slot.rs")]]);
        assert_eq!(shape.room_circles, [["session", "slot"]]);
    }

    /// A circle through `mod.rs` is none of files, since each file is related to the next.
    #[test]
    fn of_crate__sees_circles_of_rooms_through_their_parents() {
        let lib = ("lib.rs", "mod call;\nmod engine;\nmod word;\n");
        let call = ("call/mod.rs", "mod state;\nuse crate::engine::Engine;\npub struct Options;\n");
        let state = ("call/state.rs", "use super::Options;\nuse crate::word::Word;\n");
        let engine = ("engine/mod.rs", "mod turn;\npub use turn::Turn;\npub struct Engine;\n");
        let turn = ("engine/turn.rs", "use crate::call::Options;\npub struct Turn;\n");
        let word = ("word.rs", "pub struct Word;\n");
        let shape = shape_of("rooms", &[lib, call, state, engine, turn, word]);
        assert!(shape.circles.is_empty(), "{:?}", shape.circles);
        assert_eq!(shape.room_circles, [["call", "engine"]]);
    }
}
