// Strings, objects and typed arrays that follow from their place; all are checked at the end.
const n = 300000;
const objects = [];
for (let i = 0; i < n; i++) objects.push({ id: i, text: `text ${i} `.repeat(12) + (i % 7), list: [i, i + 1, i * 2] });
const arrays = [];
for (let k = 0; k < 48; k++) arrays.push(new Float64Array(131072).fill(k + 0.5));
for (let i = 0; i < n; i += 3) objects[i] = { id: i, text: `again ${i} `.repeat(12), list: [-i] };
setTimeout(() => {
  for (let i = 0; i < n; i++) {
    const o = objects[i];
    const good = i % 3
      ? o.text === `text ${i} `.repeat(12) + (i % 7) && o.list[2] === i * 2
      : o.text === `again ${i} `.repeat(12) && o.list[0] === -i;
    if (o.id !== i || !good) throw new Error(`object ${i}`);
  }
  arrays.forEach((a, k) => a.forEach((v, i) => { if (v !== k + 0.5) throw new Error(`array ${k} at ${i}`); }));
  console.log('right');
}, 1200);
