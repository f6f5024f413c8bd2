//! Damage tests: if bytes of a store change after they were written, the error names the file and the byte range.

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

fn two_iterations() -> (Memory, Seen) {
    let memory = Memory::new();
    let mut store = open(&memory);
    trained(&mut store, &[]);
    trained(&mut store, &[0]);
    let seen = Seen::of(&mut store);
    (memory, seen)
}

/// Read the whole store.
fn read(memory: Memory) -> Result<Seen> {
    let mut store = Store::read_on(Arc::new(memory), run())?;
    for folder in FOLDERS.iter() {
        store.all_rows(folder)?;
    }
    for iteration in 0..store.iteration() {
        store.batch(iteration)?;
    }
    Ok(Seen::of(&mut store))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_or_a_cut_is_named(file in 0_usize..100, place in 0.0..1.0_f64, bit in 0_u8..8, cut in any::<bool>()) {
        let (memory, _) = two_iterations();
        let files: Vec<_> = memory.image().files().into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let (path, bytes) = &files[file % files.len()];
        let at = ((bytes.len() as f64 * place) as usize).min(bytes.len() - 1);
        let mut damaged = bytes.to_vec();
        if cut { damaged.truncate(at) } else { damaged[at] ^= 1 << bit }
        let error = read(Memory::from(memory.image().with_bytes(path, &damaged))).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error);
        let text = error.to_string();
        prop_assert!(text.contains(&path.display().to_string()) && text.contains("bytes "), "{}", text);
        let numbers: Vec<usize> = text[text.find("bytes ").unwrap()..]
            .split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        prop_assert!(cut || (numbers[0] <= at && at < numbers[1]), "{} does not hold {}", text, at);
        let found = Store::open_on(Arc::new(Memory::from(memory.image().with_bytes(path, &damaged))), run(), Sync::Batch)
            .and_then(|mut store| store.verify(&mut || Ok(())));
        match found {
            Ok(findings) => prop_assert!(findings.iter().any(|found| found.kind == "damage"), "{:?}", findings),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}

#[test]
fn an_undamaged_store_is_read() {
    let (memory, seen) = two_iterations();
    assert_eq!(read(memory).unwrap(), seen);
}

#[test]
fn a_missing_file_is_named() {
    let (memory, _) = two_iterations();
    for path in memory.image().files().into_keys().filter(|path| path.extension().is_some_and(|end| end == "arrow")) {
        let memory = Memory::from(memory.image());
        memory.remove(&path).unwrap();
        for error in [
            read(memory.clone()).unwrap_err(),
            Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }
}

#[test]
fn files_of_commits_that_no_manifest_knows_are_not_touched() {
    let (memory, _) = two_iterations();
    let before = memory.image().files();
    memory.remove(&manifest::path(run(), 2)).unwrap();
    let error = Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("/run/nodes/000000000000-00000001.arrow belongs to a later commit"), "{error}");
    assert_eq!(memory.image().files().len(), before.len() - 1);
}

#[test]
fn unknown_features_are_refused_with_the_version_that_knows_them() {
    let (memory, _) = two_iterations();
    let path = manifest::path(run(), 2);
    let with_flags = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = Manifest::latest(&memory, run()).unwrap().unwrap();
        change(&mut manifest);
        Memory::from(memory.image().with_bytes(&path, &manifest.to_bytes().unwrap()))
    };
    let flag = manifest::Flag { name: "compressed".to_owned(), since: "0.9.0".to_owned() };
    let unreadable = with_flags(&|manifest| manifest.reader_flags.push(flag.clone()));
    let error = Store::read_on(Arc::new(unreadable), run()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("\"compressed\", which agentrl_core 0.9.0 or newer"), "{error}");
    let unwritable = with_flags(&|manifest| manifest.writer_flags.push(flag.clone()));
    Store::read_on(Arc::new(unwritable.clone()), run()).unwrap().batch(1).unwrap();
    let error = Store::open_on(Arc::new(unwritable), run(), Sync::Batch).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("open it read-only"), "{error}");
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let (memory, _) = two_iterations();
    let whole = fs::read_whole(&memory, &manifest::path(run(), 2), 1 << 20).unwrap();
    let text = std::str::from_utf8(&whole).unwrap();
    let body = text.lines().next().unwrap();
    let changes = [
        ("\"first_row\":0", "\"first_row\":18446744073709551615"),
        ("\"commit\":2", "\"commit\":3"),
        ("\"rows\":{", "\"rows\":{\"nodes\":1,\"x\":"),
        ("\"segments\":{", "\"segments\":{\"../x\":[{\"first_row\":0,\"commit\":0,\"blocks\":[]}],"),
    ];
    for (from, to) in changes {
        assert!(body.contains(from), "{body}");
        let body = body.replace(from, to);
        let error = Manifest::parse(Path::new("m"), manifest::with_checksum(&body).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
