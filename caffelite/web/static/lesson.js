// Ten steps from one neuron to the spiral. Each sets the playground up, and says what to try.

const start = { data: "plane", points: 300, noise: 0, split: 0.3, layers: [], activation: "none", norm: "none", dropout: 0,
  optimizer: "SGD", rate: 0.03, decay: 0, schedule: "constant", batch_size: 32, seed: 0 };

export const STEPS = [
  ["One neuron", "This net has one neuron. It multiplies each of its two inputs by a weight, and adds a bias. So it can say " +
    "any tilted plane. Press Play. The loss falls, and the colours of the square become those of the points.",
    { ...start }],
  ["The rate", "The learning rate says how far a step goes. Take 0.001: it learns, but slowly. Take 3: the steps go too far, " +
    "and the loss grows instead of falling. The page then says that the training has diverged.",
    { ...start, rate: 0.001 }],
  ["Two classes", "Now the points have two classes, and there are two outputs: one for each. The larger one decides. One layer " +
    "can only divide the plane by a straight line. So it finds no way to divide these points.",
    { ...start, data: "xor", rate: 0.1 }],
  ["A hidden layer", "Four units stand between inputs and outputs. Each is a neuron with a ReLU: it says nothing below 0. So " +
    "each unit divides the plane by a line of its own, and the outputs combine them. Look at the small pictures while it learns.",
    { ...start, data: "xor", layers: [4], activation: "ReLU", optimizer: "Adam", rate: 0.03 }],
  ["Without bends", "The same net without an activation. However many layers it has, it says only straight things. Choose ReLU " +
    "or Tanh under Activation, and it learns at once.",
    { ...start, data: "circles", layers: [4], activation: "none", optimizer: "Adam", rate: 0.03 }],
  ["Luck", "Two units are few. Begin again with other seeds: 1, 2, 3 … Some nets find the way, some get stuck. With more units " +
    "there are more ways. Press + above the layer, and try again.",
    { ...start, data: "circles", layers: [2], activation: "ReLU", optimizer: "Adam", rate: 0.03, seed: 1 }],
  ["Noise", "These moons overlap. Nobody can tell all points apart. Watch the two losses: that of the training goes on falling, " +
    "that of the points that are held out stops. The net then learns the noise by heart.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.03 }],
  ["Held back", "Weight decay and dropout hold a net back. Here both are on. The border is smoother, and the two losses stay " +
    "closer. Turn them off, one after the other, and compare.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "AdamW", rate: 0.03, decay: 0.1, dropout: 0.3 }],
  ["The optimizer", "Plain SGD goes straight down the slope of each batch. Momentum keeps some of its speed. Adam gives each " +
    "weight a step of its own size. Try all three on this spiral with a rate of 0.03.",
    { ...start, data: "spiral", noise: 0.1, layers: [8, 8], activation: "ReLU", optimizer: "SGD", rate: 0.03 }],
  ["The spiral", "Three arms, two hidden layers. The first layer divides the plane by lines. The second bends them together. " +
    "Now it is yours: add layers, change the activation, and see which net is the smallest that learns it.",
    { ...start, data: "spiral", noise: 0.1, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.01 }],
];
