// The trial that the reader looks at, in every figure at once; and the trials that are brushed.
const selection = (() => {
  const listeners = [];
  const brushListeners = [];
  let number = null;
  let brushed = null;
  function choose(next) {
    number = next;
    for (const listen of listeners) listen(number);
  }
  // `rows`: a Set of rows of the trial table, or null when nothing is brushed.
  function brush(rows) {
    brushed = rows;
    for (const listen of brushListeners) listen(rows);
  }
  return {
    choose, brush,
    chosen: () => number,
    brushed: () => brushed,
    onChoose: (listen) => listeners.push(listen),
    onBrush: (listen) => brushListeners.push(listen),
  };
})();
