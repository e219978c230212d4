"""First names to learn letter by letter. A program of the playground has the source of both functions."""

from __future__ import annotations

import numpy as np

MAX_NAMES, LENGTH = 564, 9  # names, and the letters that the net reads of each: its begin, and at most 8 letters
LETTERS = "·abcdefghijklmnopqrstuvwxyz"  # the first one begins a name, and ends it
NEW, TRAINING, TEST = range(3)  # what a name is that the net has written


def names(n, rng):
    text = """
aaron abel abigail ada adam adela adele adrian agata agnes aida aileen aimee alan alana albert alberto alda alec
alessia alex alexa alexis alfie alfred ali alice alicia alina alison alma alvin amalia amanda amara amber amelia amina
amir amira amos amy ana andre andrea andrew angela angelo anika anita anna annika anton antonia april arda aria ariel
arlo armin arne arthur asa astrid ava axel ayla aylin barbara basil bastian beatrice bela bella ben benedict benjamin
benno berit bernard bertha beth bianca bill bjorn boris brenda brian bridget bruno caleb calvin camila carina carl
carla carlos carmen carol carolina caspar cecilia celia celine cesar charles chiara chloe chris clara clark claudia
clemens colin cora corinna cosima craig cyrus dagmar daisy dalia damian dana daniel daniela daria david dean debora
delia delphine denis derek diana diego dilan dina dominic donald dora doris dorothea dylan edgar edith edna eduardo
edward elena eleni elias elif elina elisa eliza elke ella ellen elmar elsa elvira emil emilia emily emma enrico enzo
eric erika ernest erwin esra esteban esther ethan eugene eva evelyn ezra fabian fabio fatima felicia felix fiona flora
florian frank franz freda frieda fritz gabriel gavin gemma george gerda gina gino giulia gloria grace graham greta
gunnar gustav hanna hannah hans harald harold harriet harry hasan hazel heidi heinz helen helena henri henry hilda
holly hugo ian ida ilona ilse imani imke ines ingrid irene iris irma isaac isabel isla ivan ivana ivo jack jacob jade
jakob james jana jane janet janina jasmin jasper javier jean jenny jerome jesse joan joel johan johanna john jolanda
jonah jonas jonathan jordan jorge josef joseph joshua josie judith julia julian juliana julio june justin justus kai
kara karen karim karin karl karla kasper katja keira keith kenneth kerstin kevin kilian kim kira konrad kurt lara
larissa lars laura lauren lea leah leander leila lena leni lennart leo leon leona leonard leonie leopold lewis lia
liam lidia lila lilian lily lina linda linus lisa liv livia logan lola lorena lorenz lotte louis louisa lucas lucia
lucy ludwig luis luisa luka luna lydia lynn madlen magda magnus maja malin malte manuel mara marcel marco margaret
maria mariam marie marina mario marion marius mark marlene marta martha martin martina marvin mary mathilda mats
matteo maurice max maya melanie melina melissa merle mia michael michel mika mila milan milena milo mina mira miriam
mona monica moritz nadia nadja naomi natalia natan nele nelly niamh nico nicola nicole niklas nils nina noah noam noel
nora norman olga oliver olivia omar oscar otis otto pablo paola pascal patrick paul paula paulina pavel pedro peggy
peter petra philip phoebe pia pierre polly quentin rachel rafael rahel ralf ramona raul rebecca regina rena renata
rene ricarda richard rita robert robin roger roland roman romina rosa rosalie rosie ross roy ruben rufus runa rupert
ruth ryan sabine sally salma sam samira samuel sandra sara sarah saskia scott sean selim selina selma serena sergio
simon simona sina sofia solveig sonja sophia sophie stefan stella stephan steven stuart susan susanna svea sven
sybille sylvia tabea talia tamara tania tara tatjana teresa tess thea theo theodor theresa thomas tilda till tim timo
tina tobias tom toni tristan ulrich ulrike una ursula uta valentin valeria vanessa vera verena victor victoria vincent
viola violet vivian walter wanda wendy wilhelm will willow wilma xaver yara yasmin yolanda yusuf yvonne zara zelda zoe
zora
"""
    words = text.split()
    chosen = [words[i] for i in rng.permutation(len(words))[:n]]
    x, y = np.zeros((len(chosen), 9), int), np.full((len(chosen), 9), -1)  # labels of −1 don't count
    for i, name in enumerate(chosen):
        letters = [0, *[ord(letter) - ord("a") + 1 for letter in name], 0]  # 0 begins and ends a name
        x[i, : len(name) + 1], y[i, : len(name) + 1] = letters[:-1], letters[1:]
    return x, y


def write(model, rng):
    noise = -np.log(-np.log(rng.random((10, 9, 27))))
    x = np.zeros((10, 10), int)
    for t in range(9):  # the letter with the highest score, at temperature 0.6, plus noise
        x[:, t + 1] = (model.predict(x[:, :9])[:, t] / 0.6 + noise[:, t]).argmax(axis=1)
    return ["".join([chr(ord("`") + letter) for letter in row[1:]]).split("`")[0] for row in x.tolist()]
