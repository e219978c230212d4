// Ten steps from one neuron to the spiral. Each has a title, its text, the setting of the playground, and the speed: steps
// a second, slow enough to watch.

const start = { data: "plane", points: 300, noise: 0, split: 0.3, layers: [], activation: "none", loss: "MSELoss", norm: "none",
  dropout: 0, optimizer: "SGD", rate: 0.03, decay: 0, schedule: "constant", batch_size: 32, seed: 0 };

export const STEPS = [
  ["One neuron", "This net is one neuron. It multiplies each of its two inputs by a weight, adds the products, and adds a " +
    "bias. So what it computes is a tilted plane. Press Play. The loss falls, and the colour of the square becomes that of the points.",
    { ...start }, 30],
  ["The learning rate", "The learning rate is how far each step goes. Press Play: with 0.001 the net learns " +
    "slowly. Take 0.1: it is much faster. Take 3: each step goes too far, and the loss grows. The page then tells you that the " +
    "training has diverged.",
    { ...start, rate: 0.001 }, 30],
  ["Two classes", "These points have two classes. The net has an output for each class, and the larger output wins. One layer " +
    "can only divide the plane by a straight line. No straight line divides these points. Press Play: the net gets some 60 % of them right.",
    { ...start, data: "xor", rate: 0.1 }, 300],
  ["A hidden layer", "Now there is a layer of four units between inputs and outputs. Each unit is a neuron with a ReLU, which " +
    "turns numbers below 0 into 0. So each unit bends the plane along a line of its own, and the outputs combine the bends. " +
    "Press Play, and watch the small pictures while the net learns.",
    { ...start, data: "xor", layers: [4], activation: "ReLU", optimizer: "Adam", rate: 0.03, seed: 11 }, 30],
  ["Without an activation", "This net has a hidden layer, but no activation. Then all layers together only make a straight line. " +
    "Press Play: it does not learn. Now choose ReLU or Tanh under Activation, and it learns at once.",
    { ...start, data: "circles", layers: [4], activation: "none", optimizer: "Adam", rate: 0.03 }, 300],
  ["Luck", "Three units are just enough for a circle: each cuts off one side. The seed decides where the net starts. With seed 1 " +
    "it gets all points right. With seeds 2 and 4 it gets stuck. With seed 3 it is stuck for more than a thousand epochs, and " +
    "then finds the way. Press + above the layer until all four learn at once.",
    { ...start, data: "circles", layers: [3], activation: "ReLU", optimizer: "Adam", rate: 0.03, seed: 1 }, 300],
  ["Noise", "These moons overlap, so no net can get all points right. Press Play, and watch the two curves. The loss of the training falls on " +
    "and on. The loss of the points that are held out falls first, and then rises: the net learns the noise by heart. This is overfitting.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.03 }, 300],
  ["Against overfitting", "Here weight decay and dropout hold the same net back. Weight decay pulls all weights towards 0. " +
    "Dropout switches units off at random. The border becomes smoother, and the two losses stay closer. Turn each one off, and compare.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "AdamW", rate: 0.03, decay: 0.1, dropout: 0.3 }, 300],
  ["The optimizer", "The optimizer turns gradients into steps. SGD goes straight down the slope. Momentum keeps some of its " +
    "speed. Adam gives each weight a step of its own size. Press Play with each of the three, and compare their losses after five seconds.",
    { ...start, data: "spiral", noise: 0.1, layers: [8, 8], activation: "ReLU", optimizer: "SGD", rate: 0.03 }, 300],
  ["The spiral", "Three arms, two hidden layers. The first layer bends the plane along lines. The second bends the result again. " +
    "Now it is yours. Which is the smallest net that learns the spiral? Click a link to follow one weight, down to its machine instructions.",
    { ...start, data: "spiral", noise: 0.1, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.01 }, 300],
];
