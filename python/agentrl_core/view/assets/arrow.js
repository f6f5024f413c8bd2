// Reads an Arrow IPC stream: numbers, texts, bytes, truth values and lists of them, uncompressed.
// That is what the exporter writes. The format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc

const [NULL, INT, FLOAT, BINARY, UTF8, BOOL, LIST, LARGE_BINARY, LARGE_UTF8, LARGE_LIST] = [1, 2, 3, 4, 5, 6, 12, 19, 20, 21];
const SCHEMA = 1;
const BATCH = 3;

// The columns of a stream by their names, and the number of rows.
export function readStream(buffer) {
  const view = new DataView(buffer);
  let fields = [];
  const batches = [];
  for (let at = 0; at + 8 <= buffer.byteLength; ) {
    if (view.getInt32(at, true) !== -1) throw new Error("no Arrow stream");
    const size = view.getInt32(at + 4, true);
    if (size === 0) break;
    const message = root(view, at + 8);
    const body = at + 8 + size;
    const header = message.table(2);
    if (message.byte(1) === SCHEMA) fields = header.tables(1).map(fieldOf);
    else if (message.byte(1) === BATCH) batches.push(readBatch(buffer, body, header, fields));
    at = body + message.long(3);
  }
  if (batches.length === 1) return batches[0];
  const parts = (field) => (batches.length ? batches.map((batch) => batch.columns[field.name]) : [emptyOf(field)]);
  const rows = batches.reduce((sum, batch) => sum + batch.rows, 0);
  return { rows, columns: Object.fromEntries(fields.map((field) => [field.name, joined(parts(field))])) };
}

// The columns of several record batches as one; a writer begins another batch after some number of rows.
function joined(parts) {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const bits = new Uint8Array(length);
  let begin = 0;
  for (const part of parts) {
    for (let row = 0; row < part.length; row++) bits[begin + row] = part.valid(row) ? 1 : 0;
    begin += part.length;
  }
  const column = { length, kind: parts[0].kind, valid: (row) => bits[row] === 1 };
  if (column.kind === "number" || column.kind === "null") return { ...column, values: chained(parts.map((part) => part.values.subarray(0, part.length))) };
  const insides = parts.map((part) => (column.kind === "list" ? part.child.length : part.bytes.length));
  const starts = insides.map((_, place) => insides.slice(0, place).reduce((sum, inside) => sum + inside, 0));
  const offsets = new Float64Array(length + 1);
  begin = 0;
  for (const [place, part] of parts.entries()) {
    for (let row = 0; row <= part.length; row++) offsets[begin + row] = starts[place] + part.offsets[row];
    begin += part.length;
  }
  return column.kind === "list" ? { ...column, offsets, child: joined(parts.map((part) => part.child)) } : { ...column, offsets, bytes: chained(parts.map((part) => part.bytes)) };
}

// Numbers one after the other; if a number is missing in some batch, all are of the type that has NaN.
function chained(arrays) {
  const Kind = arrays.every((array) => array.constructor === arrays[0].constructor) ? arrays[0].constructor : Float64Array;
  const whole = new Kind(arrays.reduce((sum, array) => sum + array.length, 0));
  let at = 0;
  for (const array of arrays) {
    whole.set(array, at);
    at += array.length;
  }
  return whole;
}

function fieldOf(table) {
  const kind = table.byte(2);
  const type = table.table(3);
  return {
    name: table.text(0),
    kind,
    bits: kind === INT ? type.int(0) : kind === FLOAT ? [16, 32, 64][type.short(0)] : 0,
    signed: kind === INT && type.byte(1) === 1,
    children: table.tables(5).map(fieldOf),
  };
}

function readBatch(buffer, body, header, fields) {
  const rows = header.long(0);
  const nodes = header.structs(1, 16);
  const buffers = header.structs(2, 16);
  if (header.has(3)) throw new Error("compressed buffers");
  const view = header.view;
  let node = 0;
  let next = 0;
  const take = () => {
    const at = buffers.at + 16 * next++;
    const begin = body + Number(view.getBigInt64(at, true));
    return buffer.slice(begin, begin + Number(view.getBigInt64(at + 8, true)));
  };
  const read = (field) => {
    const at = nodes.at + 16 * node++;
    const length = Number(view.getBigInt64(at, true));
    const nulls = Number(view.getBigInt64(at + 8, true));
    if (field.kind === NULL) return { length, kind: "null", valid: () => false, values: new Float64Array(length).fill(NaN) };
    const bits = new Uint8Array(take());
    const valid = nulls === 0 ? () => true : (row) => (bits[row >> 3] >> (row & 7)) & 1;
    if (field.kind === INT || field.kind === FLOAT) return numbersOf(field, length, nulls, valid, take());
    if (field.kind === BOOL) {
      const packed = new Uint8Array(take());
      return { length, kind: "number", valid, values: Uint8Array.from({ length }, (_, row) => (packed[row >> 3] >> (row & 7)) & 1) };
    }
    const large = field.kind >= LARGE_BINARY;
    const offsets = whole(large ? new BigInt64Array(take()) : new Int32Array(take()));
    if (field.kind === LIST || field.kind === LARGE_LIST) return { length, kind: "list", valid, offsets, child: read(field.children[0]) };
    const text = field.kind === UTF8 || field.kind === LARGE_UTF8;
    return { length, kind: text ? "text" : "bytes", valid, offsets, bytes: new Uint8Array(take()) };
  };
  return { rows, columns: Object.fromEntries(fields.map((field) => [field.name, read(field)])) };
}

const KINDS = { i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, f32: Float32Array, f64: Float64Array };

function numbersOf(field, length, nulls, valid, data) {
  const name = (field.kind === FLOAT ? "f" : field.signed ? "i" : "u") + field.bits;
  if (!KINDS[name]) throw new Error(`numbers of type ${name}`);
  let values = whole(new KINDS[name](data)).subarray(0, length);
  if (nulls > 0) {
    if (field.kind === INT) values = Float64Array.from(values); // which can say that a number is missing
    for (let row = 0; row < length; row++) if (!valid(row)) values[row] = NaN;
  }
  return { length, kind: "number", valid, values };
}

// Ids fit a double.
function whole(values) {
  return values instanceof BigInt64Array || values instanceof BigUint64Array ? Float64Array.from(values, Number) : values;
}

function emptyOf(field) {
  const valid = () => false;
  if (field.kind === LIST || field.kind === LARGE_LIST) return { length: 0, kind: "list", valid, offsets: [0], child: emptyOf(field.children[0]) };
  if (field.kind === INT || field.kind === FLOAT || field.kind === BOOL || field.kind === NULL) return { length: 0, kind: "number", valid, values: new Float64Array(0) };
  return { length: 0, kind: "text", valid, offsets: [0], bytes: new Uint8Array(0) };
}

const UTF8_TEXT = new TextDecoder();

// A value: a number, a text, bytes, an array of numbers, or null where there is none.
export function value(column, row) {
  if (column === undefined || !column.valid(row)) return null;
  if (column.kind === "number") return column.values[row];
  if (column.kind === "null") return null;
  const [begin, end] = [column.offsets[row], column.offsets[row + 1]];
  if (column.kind === "list") return column.child.values.subarray(begin, end);
  const bytes = column.bytes.subarray(begin, end);
  return column.kind === "text" ? UTF8_TEXT.decode(bytes) : bytes;
}

// The rows of a table as objects; what needs every token reads the columns instead.
export function records(table) {
  const names = Object.keys(table.columns);
  return Array.from({ length: table.rows }, (_, row) => Object.fromEntries(names.map((name) => [name, value(table.columns[name], row)])));
}

// A table of a flatbuffer: fields are found through its vtable.
class Flat {
  constructor(view, at) {
    this.view = view;
    this.at = at;
    this.vtable = at - view.getInt32(at, true);
  }
  place(field) {
    const slot = 4 + 2 * field;
    if (slot >= this.view.getUint16(this.vtable, true)) return 0;
    const offset = this.view.getUint16(this.vtable + slot, true);
    return offset === 0 ? 0 : this.at + offset;
  }
  has(field) {
    return this.place(field) !== 0;
  }
  byte(field) {
    const at = this.place(field);
    return at ? this.view.getUint8(at) : 0;
  }
  short(field) {
    const at = this.place(field);
    return at ? this.view.getInt16(at, true) : 0;
  }
  int(field) {
    const at = this.place(field);
    return at ? this.view.getInt32(at, true) : 0;
  }
  long(field) {
    const at = this.place(field);
    return at ? Number(this.view.getBigInt64(at, true)) : 0;
  }
  to(at) {
    return at + this.view.getUint32(at, true);
  }
  table(field) {
    const at = this.place(field);
    return at ? new Flat(this.view, this.to(at)) : null;
  }
  structs(field) {
    const at = this.to(this.place(field));
    return { length: this.view.getUint32(at, true), at: at + 4 };
  }
  tables(field) {
    if (!this.has(field)) return [];
    const { length, at } = this.structs(field);
    return Array.from({ length }, (_, index) => new Flat(this.view, this.to(at + 4 * index)));
  }
  text(field) {
    const { length, at } = this.structs(field);
    return UTF8_TEXT.decode(new Uint8Array(this.view.buffer, at, length));
  }
}

function root(view, at) {
  return new Flat(view, at + view.getUint32(at, true));
}
