//! Tests of state arrays: written whole or as changes, they are read back unchanged.

use super::*;
use crate::ErrorKind;

fn close(store: &mut Store, arrays: &Arrays) -> Result<u64> {
    let iteration = store.iteration();
    let batch = grown(iteration, 1).rebase(store.next_ids())?;
    store.append(&batch, iteration, false)?;
    store.close_with(&batch, "null", arrays, &[])
}

fn numbers(values: &[i64]) -> StateArray {
    state_array(Dtype::I64, None, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Return the number of value bytes that the last closed iteration wrote.
fn written(store: &mut Store) -> usize {
    let rows = store.all_rows("states").unwrap();
    let last = store.iteration() - 1;
    let of = |rows: &RecordBatch| {
        let iterations = crate::batch::i64s(rows, "iteration").unwrap().clone();
        let values = crate::batch::lists(rows, "values").unwrap().clone();
        let own = (0..rows.num_rows()).filter(move |&row| iterations.value(row) == last);
        own.map(|row| values.value_length(row) as usize).sum::<usize>()
    };
    rows.iter().map(of).sum()
}

#[test]
fn only_what_changed_is_written_until_all_is_written_again() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut values: Vec<i64> = (0..1_000).collect();
    let mut sizes = Vec::new();
    for iteration in 0..40 {
        values[iteration * 7 % 1_000] = -1;
        values.push(iteration as i64);
        let arrays = Arrays::from([("memory/number".to_owned(), numbers(&values))]);
        close(&mut store, &arrays)?;
        sizes.push(written(&mut store));
        assert_eq!(store.arrays()?, arrays);
        assert_eq!(Store::read_on(Arc::new(memory.clone()), run())?.arrays()?, arrays, "iteration {iteration}");
    }
    assert_eq!(sizes[0], 8_008, "the first is whole");
    assert!(sizes[1..].iter().all(|&size| size == 16), "one row changed and one was added: {sizes:?}");
    // An iteration writes 32 bytes with the indices. After 145 iterations that is more than half of the arrays' 9 200
    // bytes.
    for _ in 0..150 {
        values.push(5);
        values[0] -= 1;
        close(&mut store, &Arrays::from([("memory/number".to_owned(), numbers(&values))]))?;
        sizes.push(written(&mut store));
    }
    let whole = sizes.iter().filter(|&&size| size > 8_000).count();
    assert_eq!(whole, 2, "{sizes:?}");
    drop(store);
    let mut store = open(&memory);
    assert_eq!(store.arrays()?["memory/number"], numbers(&values));
    assert!(store.verify(&mut || Ok(()))?.is_empty());
    Ok(())
}

#[test]
fn arrays_come_go_shrink_and_change_their_type() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let wide: Vec<i64> = (0..100).collect();
    let bytes = |width: u64| state_array(Dtype::U8, Some(width), vec![7; 12]);
    let steps = [
        Arrays::from([("a".to_owned(), numbers(&wide))]),
        Arrays::from([("a".to_owned(), numbers(&wide[..50])), ("b".to_owned(), bytes(3))]),
        Arrays::from([("a".to_owned(), numbers(&wide[..50])), ("b".to_owned(), bytes(4))]),
        Arrays::from([("b".to_owned(), state_array(Dtype::I8, Some(4), vec![7; 12]))]),
        Arrays::new(),
        Arrays::from([("b".to_owned(), numbers(&[]))]),
        Arrays::from([("a".to_owned(), numbers(&wide)), ("b".to_owned(), numbers(&[3]))]),
    ];
    for arrays in &steps {
        close(&mut store, arrays)?;
        assert_eq!(&store.arrays()?, arrays);
        assert_eq!(&Store::read_on(Arc::new(memory.clone()), run())?.arrays()?, arrays);
        drop(store);
        store = open(&memory);
        assert_eq!(&store.arrays()?, arrays);
    }
    store.compact(&mut || Ok(()))?;
    assert_eq!(&store.arrays()?, &steps[6]);
    Ok(())
}

#[test]
fn rows_that_a_component_refers_to_are_not_dropped() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let refers = Arrays::from([("replay/trajectory_id".to_owned(), numbers(&[-1, 0]))]);
    for _ in 0..3 {
        close(&mut store, &refers)?;
    }
    let refused = store.drop_before(2, false, &mut || Ok(())).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::InvalidInput));
    let mut reader = Store::read_on(Arc::new(memory.clone()), run())?;
    store.drop_before(2, true, &mut || Ok(()))?;
    assert_eq!(store.trajectories(&[0])?.trajectories().num_rows(), 1);
    assert!(store.trajectories(&[1]).is_err());
    assert_eq!(store.arrays()?, refers);
    assert_eq!(reader.arrays()?, refers, "the last base is kept");
    assert!(store.verify(&mut || Ok(()))?.is_empty());
    Ok(())
}

#[test]
fn an_array_whose_bytes_do_not_fit_is_refused() -> Result<()> {
    let mut store = open(&Memory::new());
    let wrong = StateArray { rows: 3, ..numbers(&[1, 2]) };
    let batch = grown(0, 1).rebase(store.next_ids())?;
    store.append(&batch, 0, false)?;
    let refused = store.close_with(&batch, "null", &Arrays::from([("a".to_owned(), wrong)]), &[]);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    assert_eq!(store.iteration(), 0);
    store.close_with(&batch, "null", &Arrays::new(), &[]).map(drop)
}
